/* A model around `run` and `work`. The model's own definitions precede this text. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEAD (sizeof head - 1)
#define FILE_SIZE (HEAD + (size_t)WEIGHTS)
#define ALL ((size_t)MEMORY + THREADS * (size_t)WORKSPACE + STATE_BYTES)
#define LARGE ((size_t)4 << 20)

void run(void **args, void *memory, const void *constants, void *workspace, void *state);
void work(void *state, void *workspace);

typedef struct {
    void *state, *workspace;
    pthread_t thread;
} helper;

struct NAME(model) {
    unsigned char *weights, *memory, *workspace;
    void *state;
    helper helpers[THREADS];
    int started;
};

/* Sums of words and of these sums: the second kind detects moved words. */
static int whole(const unsigned char *weights)
{
    uint64_t sum = 0, sums = 0;
    for (size_t at = HEAD; at < FILE_SIZE; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, weights + at, sizeof word);
        sum += word;
        sums += sum;
    }
    return sum == SUM && sums == SUMS;
}

static int mapped(struct NAME(model) * model, const char *path)
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
                model->weights = at;
                error = whole(at) ? CODE(OK) : CODE(DAMAGED);
            }
        }
    }
    int kept = errno;
    close(file);
    errno = kept;
    return error;
}

static int reserved(struct NAME(model) * model)
{
    void *at = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CODE(NO_MEMORY);
    if (ALL >= LARGE)
        madvise(at, ALL, MADV_HUGEPAGE); /* faster, if the system supports them */
    model->memory = at;
    model->workspace = model->memory + MEMORY;
    model->state = model->workspace + THREADS * (size_t)WORKSPACE;
    return CODE(OK);
}

#if THREADS > 1
static void *helping(void *given)
{
    helper *own = given;
    work(own->state, own->workspace);
    return NULL;
}
#endif

static int started(struct NAME(model) * model)
{
#if THREADS > 1
    sigset_t all, before;
    memset(model->state, 0, STATE_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's threads handle signals */
    for (int n = 1; n < THREADS; n++) {
        helper *h = &model->helpers[n];
        h->state = model->state;
        h->workspace = model->workspace + n * (size_t)WORKSPACE;
        if (pthread_create(&h->thread, NULL, helping, h) != 0)
            break;
        model->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    return model->started == THREADS - 1 ? CODE(OK) : CODE(NO_THREADS);
}

static void ended(struct NAME(model) * model)
{
    if (model->started == 0)
        return;
    _Atomic int64_t *words = model->state;
    atomic_store(&words[STOP], 1);
    atomic_fetch_add(&words[WAKE], 1); /* threads that read the word before do not sleep on it */
    syscall(SYS_futex, &words[WAKE], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    for (int n = 1; n <= model->started; n++)
        pthread_join(model->helpers[n].thread, NULL);
}

struct NAME(model) * NAME(open)(const char *weights, int *error)
{
    int ignored;
    error = error == NULL ? &ignored : error;
    __builtin_cpu_init();
    *error = FITS ? weights == NULL ? CODE(NO_TENSOR) : CODE(OK) : CODE(NO_PROCESSOR);
    if (*error != CODE(OK))
        return NULL;
    struct NAME(model) *model = calloc(1, sizeof *model);
    *error = model == NULL ? CODE(NO_MEMORY) : mapped(model, weights);
    if (*error == CODE(OK))
        *error = reserved(model);
    if (*error == CODE(OK))
        *error = started(model);
    if (*error == CODE(OK))
        return model;
    int kept = errno;
    NAME(close)(model);
    errno = kept;
    return NULL;
}

int NAME(run)(struct NAME(model) * model, const void *const inputs[], void *const outputs[])
{
    const void *given[INPUTS + 1];
    void *args[INPUTS + OUTPUTS + 1];
    if (model == NULL || (inputs == NULL && INPUTS > 0) || outputs == NULL)
        return CODE(NO_TENSOR);
    for (int n = 0; n < INPUTS; n++) {
        given[n] = inputs[n];
        if (given[n] == NULL && defaults[n] != NONE)
            given[n] = model->weights + HEAD + defaults[n];
        if (given[n] == NULL && NAME(inputs)[n].bytes > 0)
            return CODE(NO_TENSOR);
    }
    for (int n = 0; n < OUTPUTS; n++)
        if (outputs[n] == NULL && NAME(outputs)[n].bytes > 0)
            return CODE(NO_TENSOR);
    for (int n = 0; n < ARGUMENTS; n++)
        args[n] = arguments[n].where == INPUT ? (void *)given[arguments[n].at]
                                              : outputs[arguments[n].at];
    if (ARGUMENTS > 0)
        run(args, model->memory, model->weights + HEAD, model->workspace, model->state);
    for (int n = 0; n < COPIES; n++) {
        place from = copies[n].from;
        const void *data = from.where == INPUT    ? given[from.at]
                           : from.where == OUTPUT ? outputs[from.at]
                                                  : model->weights + HEAD + from.at;
        if (NAME(outputs)[copies[n].to].bytes > 0)
            memcpy(outputs[copies[n].to], data, NAME(outputs)[copies[n].to].bytes);
    }
    return CODE(OK);
}

void NAME(close)(struct NAME(model) * model)
{
    if (model == NULL)
        return;
    ended(model);
    if (model->memory != NULL)
        munmap(model->memory, ALL);
    if (model->weights != NULL)
        munmap(model->weights, FILE_SIZE);
    free(model);
}

const char *NAME(error)(int error)
{
    switch (error) {
    case CODE(OK):
        return "nothing is wrong";
    case CODE(NO_FILE):
        return "the weights cannot be read";
    case CODE(OTHER_FILE):
        return "the file holds no weights of this model";
    case CODE(DAMAGED):
        return "the weights are damaged";
    case CODE(NO_PROCESSOR):
        return "this processor lacks one of: " NEEDS;
    case CODE(NO_MEMORY):
        return "out of memory";
    case CODE(NO_THREADS):
        return "a thread cannot be started";
    case CODE(NO_TENSOR):
        return "a pointer is NULL that must not be";
    default:
        return "no error of this model";
    }
}
