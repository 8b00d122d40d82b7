/* What a model needs of WebAssembly; see linux.c. There is one thread, and no files: the weights are
   in memory, where `open` is given their address. */

#include <stdatomic.h>
#include <stdlib.h>

typedef int system_thread;

static int fits_processor(void) { return FITS; }

/* Take the weights, which the host has read. */
static int map_weights(const char *path, const unsigned char **weights)
{
    if (memcmp(path, head, HEAD) != 0)
        return CODE(OTHER_FILE);
    *weights = (const unsigned char *)path;
    return whole(*weights) ? CODE(OK) : CODE(DAMAGED);
}

static void unmap_weights(const unsigned char *weights) { (void)weights; }

static void *new_pages(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return at == NULL ? NULL : memset(at, 0, bytes);
}

static void free_pages(void *at, size_t bytes)
{
    (void)bytes;
    free(at);
}

static void wake_threads(_Atomic int64_t *word) { (void)word; }

static int start_thread(system_thread *thread, void (*f)(void *), void *data)
{
    (void)thread, (void)f, (void)data;
    return 0;
}

static void join_thread(system_thread thread) { (void)thread; }

/* Return memory for tensors and weights, aligned to 64 bytes; NULL if there is none. */
void *NAME(allocate)(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

void NAME(free)(void *at) { free(at); }
