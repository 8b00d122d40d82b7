/* What a model needs of Windows; see linux.c. */

#define WIN32_LEAN_AND_MEAN
#define NOUSER /* it defines INPUT */
#include <windows.h>

typedef HANDLE system_thread;
typedef struct {
    void (*f)(void *);
    void *data;
} thread_start;

static int fits_processor(void)
{
    (void)has_bit, (void)saves_registers;
    return FITS;
}

static HANDLE open_file(const char *path)
{
    int length = MultiByteToWideChar(CP_UTF8, 0, path, -1, NULL, 0);
    wchar_t *wide = length > 0 ? calloc((size_t)length, sizeof *wide) : NULL;
    if (wide == NULL)
        return INVALID_HANDLE_VALUE;
    MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, length);
    HANDLE out = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL);
    free(wide);
    return out;
}

/* Map the file of weights; its path is UTF-8. Return an error code. */
static int map_weights(const char *path, const unsigned char **weights)
{
    int error = CODE(NO_FILE);
    HANDLE file = open_file(path), mapping;
    char found[HEAD];
    DWORD count = 0;
    LARGE_INTEGER size;
    if (file == INVALID_HANDLE_VALUE)
        return error;
    if (!ReadFile(file, found, HEAD, &count, NULL))
        error = CODE(NO_FILE);
    else if (count < HEAD || memcmp(found, head, HEAD) != 0)
        error = CODE(OTHER_FILE);
    else if (GetFileSizeEx(file, &size) && (uint64_t)size.QuadPart != FILE_SIZE)
        error = CODE(DAMAGED);
    else if ((mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL)) != NULL) {
        void *at = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, FILE_SIZE);
        CloseHandle(mapping);
        if (at != NULL) {
            *weights = at;
            error = whole(at) ? CODE(OK) : CODE(DAMAGED);
        }
    }
    CloseHandle(file);
    return error;
}

static void unmap_weights(const unsigned char *weights) { UnmapViewOfFile(weights); }

static void *new_pages(size_t bytes)
{
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

static void free_pages(void *at, size_t bytes)
{
    (void)bytes;
    VirtualFree(at, 0, MEM_RELEASE);
}

static void wake_threads(_Atomic int64_t *word) { WakeByAddressAll((void *)word); }

static DWORD WINAPI call_start(void *given)
{
    thread_start start = *(thread_start *)given;
    free(given);
    start.f(start.data);
    return 0;
}

static int start_thread(system_thread *thread, void (*f)(void *), void *data)
{
    thread_start *start = malloc(sizeof *start);
    if (start == NULL)
        return 0;
    *start = (thread_start){f, data};
    *thread = CreateThread(NULL, 0, call_start, start, 0, NULL);
    if (*thread == NULL)
        free(start);
    return *thread != NULL;
}

static void join_thread(system_thread thread)
{
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
