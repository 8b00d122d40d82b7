/* What a model needs of Linux. windows.c and wasm.c define the same names. */

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#define LARGE_BYTES ((size_t)4 << 20)

typedef pthread_t system_thread;
typedef struct {
    void (*f)(void *);
    void *data;
} thread_start;

static int fits_processor(void)
{
#ifdef __x86_64__
    (void)has_bit, (void)saves_registers;
#endif
    return FITS;
}

/* Map the file of weights. Return an error code; after NO_FILE errno says why. */
static int map_weights(const char *path, const unsigned char **weights)
{
    int error = CODE(NO_FILE), file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    char found[HEAD];
    if (file < 0)
        return error;
    ssize_t count = pread(file, found, HEAD, 0);
    if (count >= 0 && (count < (ssize_t)HEAD || memcmp(found, head, HEAD) != 0))
        error = CODE(OTHER_FILE);
    else if (count >= 0 && fstat(file, &about) == 0) {
        if ((uint64_t)about.st_size != FILE_SIZE)
            error = CODE(DAMAGED);
        else {
            void *at = mmap(NULL, FILE_SIZE, PROT_READ, MAP_PRIVATE, file, 0);
            if (at != MAP_FAILED) {
                *weights = at;
                error = whole(at) ? CODE(OK) : CODE(DAMAGED);
            }
        }
    }
    int kept = errno;
    close(file);
    errno = kept;
    return error;
}

static void unmap_weights(const unsigned char *weights)
{
    int kept = errno;
    munmap((void *)weights, FILE_SIZE);
    errno = kept;
}

/* Return memory of zeros; NULL if there is none. */
static void *new_pages(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (bytes >= LARGE_BYTES)
        madvise(at, bytes, MADV_HUGEPAGE); /* faster, if the system supports them */
    return at;
}

static void free_pages(void *at, size_t bytes)
{
    int kept = errno;
    munmap(at, bytes);
    errno = kept;
}

/* Wake all threads that sleep on this word. */
static void wake_threads(_Atomic int64_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void *call_start(void *given)
{
    thread_start start = *(thread_start *)given;
    free(given);
    start.f(start.data);
    return NULL;
}

/* Start a thread, which handles no signals. Return whether it runs. */
static int start_thread(system_thread *thread, void (*f)(void *), void *data)
{
    sigset_t all, before;
    thread_start *start = malloc(sizeof *start);
    if (start == NULL)
        return 0;
    *start = (thread_start){f, data};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, call_start, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        free(start);
    return error == 0;
}

static void join_thread(system_thread thread) { pthread_join(thread, NULL); }
