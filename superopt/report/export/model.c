/* A model around its programs. The model's own definitions precede this text. */

#include <stdatomic.h>
#include <stdlib.h>

#define ALIGNMENT 64
/* What all handles of a model share. */
typedef struct {
    atomic_int users;
    const unsigned char *weights;
    unsigned char *derived;                  /* constants that are not in the weights */
    const void *constants[CONSTANTS + 1]; /* of all programs */
} shared_data;

typedef struct {
    void *state, *workspace;
    void (*work)(void *state, void *workspace);
    system_thread thread;
} helper;

/* The other threads of a program. */
typedef struct {
    helper helpers[THREADS];
    int started;
} team;

/* program: the one for the sizes of the last run; NULL before the first. words: those that it reads.
   ranges: the least and the greatest value of each limit. failure: of the last call. memory, workspace: their bytes, the latter for each thread. memories: memory, then workspaces. */
struct NAME(model) {
    shared_data *shared;
    int is_pooled; /* the caller's threads take the place of its own */
    const struct program *program;
    int64_t sizes[SIZES + 1], words[WORDS + 1], ranges[2 * LIMITS + 1];
#if LIMITS > 0
    extent extents[LIMITS];
#endif
    failure failure;
    size_t bytes[INPUTS + OUTPUTS + 1]; /* of each tensor */
    size_t memory, workspace;
    unsigned char *memories, *states;
    team teams[PROGRAMS + 1];
};

static unsigned char *workspace(const struct NAME(model) * model, int thread)
{
    return model->memories + model->memory + (size_t)thread * model->workspace;
}

static void stop_work(void *state)
{
    _Atomic int64_t *words = state;
    atomic_store(&words[STOP], 1);
    atomic_fetch_add(&words[WAKE], 1); /* threads that read the word before do not sleep on it */
    wake_threads(&words[WAKE]);
}

static void end_team(team *t)
{
    if (t->started == 0)
        return;
    stop_work(t->helpers[1].state);
    for (int n = 1; n <= t->started; n++)
        join_thread(t->helpers[n].thread);
    t->started = 0;
}

static void help(void *given)
{
    helper *own = given;
    own->work(own->state, own->workspace);
}

/* Start the threads of a program, unless they run. */
static int start_team(struct NAME(model) * model, const struct program *p)
{
    team *t = &model->teams[p - programs];
    void *state = model->states + (size_t)(p - programs) * STATE_BYTES;
    if (model->is_pooled || p->work == NULL || t->started == THREADS - 1)
        return CODE(OK);
    memset(state, 0, STATE_BYTES);
    for (int n = 1; n < THREADS; n++) {
        helper *h = &t->helpers[n];
        h->state = state;
        h->workspace = workspace(model, n);
        h->work = p->work;
        if (!start_thread(&h->thread, help, h))
            break;
        t->started++;
    }
    if (t->started == THREADS - 1)
        return CODE(OK);
    end_team(t);
    return CODE(NO_THREADS);
}

/* Release the memory, which threads use. */
static void release(struct NAME(model) * model)
{
    for (int n = 0; n < PROGRAMS; n++)
        end_team(&model->teams[n]);
    if (model->memories != NULL)
        free_pages(model->memories, model->memory + THREADS * model->workspace);
    model->memories = NULL;
    model->memory = model->workspace = 0;
}

/* Compute the bytes of both, aligned. */
static size_t total(int64_t memory, int64_t workspace, int *bad)
{
    int64_t bytes = add(memory, mul(THREADS, workspace, bad), bad);
    *bad |= (uint64_t)bytes > SIZE_MAX / 2;
    return (size_t)bytes;
}

static int64_t aligned(int64_t bytes, int *bad)
{
    return mul(floor_div(add(bytes, ALIGNMENT - 1, bad), ALIGNMENT, bad), ALIGNMENT, bad);
}

/* Let the memory have so many bytes, and more where it must grow again. */
static int grow(struct NAME(model) * model, int64_t memory, int64_t workspace)
{
    int bad[1] = {0};
    memory = aligned(memory, bad);
    workspace = aligned(workspace, bad);
    if (memory <= (int64_t)model->memory && workspace <= (int64_t)model->workspace)
        return CODE(OK);
    if (model->memory > 0 && memory > (int64_t)model->memory)
        memory = aligned(add(memory, memory / 2, bad), bad);
    memory = maximum(memory, (int64_t)model->memory);
    workspace = maximum(workspace, (int64_t)model->workspace);
    size_t bytes = total(memory, workspace, bad);
    release(model);
    void *at = *bad ? NULL : new_pages(bytes);
    if (at == NULL)
        return CODE(NO_MEMORY);
    model->memories = at;
    model->memory = (size_t)memory;
    model->workspace = (size_t)workspace;
    return CODE(OK);
}

/* Return the first program for these sizes; NULL if there is none. */
static const struct program *find_program(const int64_t sizes[])
{
    for (int n = 0; n < PROGRAMS; n++)
        if (programs[n].admits(sizes))
            return &programs[n];
    return NULL;
}

/* Return the function of the dimensions of all tensors. */
static int (*shapes_of(const struct program *p))(const int64_t[], int64_t[])
{
    return p == NULL ? dimensions : p->dimensions;
}

/* Compute the shape of a tensor at these sizes; tensors are the inputs, then the outputs. Return
   whether it has one. */
static int shape_of(int tensor, const int64_t dims[], int rank, int64_t shape[], size_t *bytes)
{
    int bad[1] = {0};
    int64_t size = item_bytes[tensor];
    for (int n = 0; n < rank; n++) {
        int64_t d = dims[first_dimensions[tensor] + n];
        if (shape != NULL)
            shape[n] = d;
        size = mul(size, d, bad);
    }
    if (bytes != NULL)
        *bytes = (size_t)size;
    return !*bad;
}

/* Let the next run at these sizes only run. */
static int prepare(struct NAME(model) * model, const int64_t sizes[])
{
    int64_t needs[2 + WORDS], dims[DIMENSIONS + 1];
    if (model->program != NULL && memcmp(model->sizes, sizes, SIZES * sizeof *sizes) == 0)
        return CODE(OK);
    model->program = NULL;
    const struct program *p = find_program(sizes);
    if (PROGRAMS > 0 && p == NULL)
        return explain_sizes(sizes, &model->failure);
    if (p != NULL && !p->values(sizes, needs))
        return OTHER_SIZES;
    if (!shapes_of(p)(sizes, dims) || !limit_values(sizes, model->ranges))
        return OTHER_SIZES;
#if LIMITS > 0
    for (int k = 0; k < LIMITS; k++)
        model->extents[k] = limited_extent(k, dims);
#endif
    for (int n = 0; n < INPUTS + OUTPUTS; n++) {
        int rank = n < INPUTS ? NAME(inputs)[n].rank : NAME(outputs)[n - INPUTS].rank;
        if (!shape_of(n, dims, rank, NULL, &model->bytes[n]))
            return OTHER_SIZES;
    }
    if (p != NULL) {
        int error = grow(model, needs[0], needs[1]);
        error = error == CODE(OK) ? start_team(model, p) : error;
        if (error != CODE(OK))
            return error;
        memcpy(model->words, needs + 2, WORDS * sizeof *needs);
        memcpy(model->sizes, sizes, SIZES * sizeof *sizes);
        model->program = p;
    }
    return CODE(OK);
}

static shared_data *open_weights(const char *path, int *error)
{
    shared_data *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        *error = CODE(NO_MEMORY);
        return NULL;
    }
    *error = map_weights(path, &shared->weights);
    if (*error == CODE(OK) && DERIVED > 0)
        *error = make_constants(shared->weights + HEAD, &shared->derived);
    for (int n = 0; n < CONSTANTS && *error == CODE(OK); n++)
        shared->constants[n] = (constants[n].is_derived ? shared->derived : shared->weights + HEAD)
                               + constants[n].at;
    return shared;
}

static void leave(shared_data *shared)
{
    if (shared == NULL || atomic_fetch_sub(&shared->users, 1) > 1)
        return;
    if (shared->weights != NULL)
        unmap_weights(shared->weights);
    if (shared->derived != NULL)
        free_pages(shared->derived, DERIVED_BYTES);
    free(shared);
}

/* Return a handle on these weights; NULL after an error, without a use of them. */
static struct NAME(model) * new_handle(shared_data *shared, int is_pooled, int *error)
{
    static const int64_t no_sizes[1];
    struct NAME(model) *model = *error == CODE(OK) ? calloc(1, sizeof *model) : NULL;
    if (model == NULL) {
        *error = *error == CODE(OK) ? CODE(NO_MEMORY) : *error;
        leave(shared);
        return NULL;
    }
    model->shared = shared;
    model->is_pooled = is_pooled;
    if (THREADS > 1 && (model->states = new_pages(PROGRAMS * (size_t)STATE_BYTES)) == NULL)
        *error = CODE(NO_MEMORY);
    else if (SIZES == 0)
        *error = prepare(model, no_sizes);
    if (*error == CODE(OK))
        return model;
    NAME(close)(model);
    return NULL;
}

static struct NAME(model) * open_model(const char *weights, int is_pooled, int *error)
{
    int ignored;
    error = error == NULL ? &ignored : error;
    *error = fits_processor() ? weights == NULL ? CODE(NO_TENSOR) : CODE(OK) : CODE(NO_PROCESSOR);
    if (*error != CODE(OK))
        return NULL;
    shared_data *shared = open_weights(weights, error);
    if (shared == NULL)
        return NULL;
    shared->users = 1;
    return new_handle(shared, is_pooled, error);
}

struct NAME(model) * NAME(open)(const char *weights, int *error)
{
    return open_model(weights, 0, error);
}

struct NAME(model) * NAME(clone)(const struct NAME(model) * model, int *error)
{
    int ignored;
    error = error == NULL ? &ignored : error;
    *error = model == NULL ? CODE(NO_TENSOR) : CODE(OK);
    if (model == NULL)
        return NULL;
    atomic_fetch_add(&model->shared->users, 1);
    return new_handle(model->shared, model->is_pooled, error);
}

/* A program's call by the threads of a pool: the first to come runs it, and the others help. */
typedef struct {
    const struct NAME(model) * model;
    void **args, *state;
    atomic_size_t arrived;
} pooled_call;

static void run_program(const struct NAME(model) * model, void **args, void *state)
{
    const struct program *p = model->program;
    p->run(args, model->memories, model->shared->constants + p->first_constant, workspace(model, 0),
           state);
}

static void take_part(void *given, size_t number)
{
    pooled_call *call = given;
    size_t arrived = atomic_fetch_add(&call->arrived, 1);
    (void)number;
    if (arrived > 0)
        call->model->program->work(call->state, workspace(call->model, (int)arrived));
    else {
        run_program(call->model, call->args, call->state);
        stop_work(call->state);
    }
}

static void call_program(const struct NAME(model) * model, void **args, superopt_parallel_for *parallel,
                         void *context)
{
    const struct program *p = model->program;
    void *state = THREADS > 1 ? model->states + STATE_BYTES * (p - programs) : NULL;
    if (!model->is_pooled || p->work == NULL) {
        run_program(model, args, state);
        return;
    }
    pooled_call call = {.model = model, .args = args, .state = state};
    memset(state, 0, STATE_BYTES);
    parallel(context, take_part, THREADS, &call);
}

static int compute(struct NAME(model) * model, const void *const inputs[], void *const outputs[],
                   superopt_parallel_for *parallel, void *context)
{
    const void *given[INPUTS + 1];
    void *args[ARGUMENTS + 1];
    const struct program *p = model->program;
    const unsigned char *weights = model->shared->weights + HEAD;
    for (int n = 0; n < INPUTS; n++) {
        given[n] = inputs[n];
        if (given[n] == NULL && defaults[n] != NONE)
            given[n] = weights + defaults[n];
        if (given[n] == NULL && model->bytes[n] > 0)
            return CODE(NO_TENSOR);
    }
    for (int n = 0; n < OUTPUTS; n++)
        if (outputs[n] == NULL && model->bytes[INPUTS + n] > 0)
            return CODE(NO_TENSOR);
#if LIMITS > 0
    for (int k = 0; k < LIMITS; k++) {
        failure *f = &model->failure;
        int n = limits[k].input;
        f->least = model->ranges[2 * k];
        f->greatest = model->ranges[2 * k + 1];
        f->limit = k;
        if (model->bytes[n] > 0
            && has_outside(given[n], model->extents[k], NAME(inputs)[n].type, f->least, f->greatest,
                           &f->value))
            return f->code = CODE(VALUE_RANGE);
    }
#endif
    if (p != NULL) {
        for (int n = 0; n < p->argument_count; n++) {
            place at = p->arguments[n];
            args[n] = at.where == INPUT ? (void *)given[at.at] : outputs[at.at];
        }
        args[p->argument_count] = model->words;
        call_program(model, args, parallel, context);
    }
    for (int n = 0; n < COPIES; n++) {
        place from = copies[n].from;
        const void *data = from.where == INPUT    ? given[from.at]
                           : from.where == OUTPUT ? outputs[from.at]
                                                  : weights + from.at;
        if (model->bytes[INPUTS + copies[n].to] > 0)
            memcpy(outputs[copies[n].to], data, model->bytes[INPUTS + copies[n].to]);
    }
    return CODE(OK);
}

/* Keep the code of a failure, unless more of it is known. */
static int failed(struct NAME(model) * model, int code)
{
    if (code != model->failure.code)
        model->failure = (failure){.code = code};
    return code;
}

int NAME(message)(const struct NAME(model) * model, char text[], size_t size)
{
    static const failure no_model = {.code = CODE(NO_TENSOR)};
    return write_failure(model == NULL ? &no_model : &model->failure, text, size);
}

#if SIZES > 0
int NAME(run)(struct NAME(model) * model, const void *const inputs[], void *const outputs[],
              const int64_t sizes[])
{
    if (model == NULL || (inputs == NULL && INPUTS > 0) || outputs == NULL || sizes == NULL)
        return CODE(NO_TENSOR);
    model->failure = (failure){0};
    int error = prepare(model, sizes);
    return failed(model, error == CODE(OK) ? compute(model, inputs, outputs, NULL, NULL) : error);
}

int NAME(reserve)(struct NAME(model) * model, const int64_t sizes[])
{
    if (model == NULL || sizes == NULL)
        return CODE(NO_TENSOR);
    model->failure = (failure){0};
    return failed(model, prepare(model, sizes));
}

int NAME(infer_sizes)(struct NAME(model) * model, const int64_t *const shapes[], int64_t sizes[])
{
    int64_t dims[DIMENSIONS + 1];
    if (model == NULL || shapes == NULL || sizes == NULL)
        return CODE(NO_TENSOR);
    failure *f = &model->failure;
    *f = (failure){0};
    for (int k = 0; k < SIZES; k++) {
        if (shapes[places[k].input] == NULL)
            return failed(model, CODE(NO_TENSOR));
        sizes[k] = shapes[places[k].input][places[k].axis];
    }
    if (!input_dimensions(sizes, dims))
        return failed(model, CODE(NO_CODE));
    for (int n = 0; n < INPUTS; n++)
        for (int axis = 0; shapes[n] != NULL && axis < NAME(inputs)[n].rank; axis++) {
            int at = first_dimensions[n] + axis, symbol = dimension_symbols[at];
            if (shapes[n][axis] == dims[at])
                continue;
            *f = (failure){.input = n, .axis = axis, .symbol = symbol, .value = shapes[n][axis],
                           .wanted = dims[at], .dimension = dimension_texts[at]};
            if (symbol >= 0) {
                f->other_input = places[symbol].input;
                f->other_axis = places[symbol].axis;
            }
            f->code = symbol >= 0 ? CODE(UNEQUAL_SIZES)
                      : NAME(inputs)[n].shape[axis] >= 0 ? CODE(OTHER_SHAPE)
                                                         : CODE(UNRELATED_SIZES);
            return f->code;
        }
    return CODE(OK);
}

size_t NAME(memory)(const int64_t sizes[])
{
    int bad[1] = {0};
    int64_t needs[2 + WORDS];
    const struct program *p = find_program(sizes);
    if (p == NULL || !p->values(sizes, needs))
        return 0;
    size_t bytes = total(aligned(needs[0], bad), aligned(needs[1], bad), bad);
    return *bad ? 0 : bytes;
}

static int tensor_shape(int tensor, int rank, const int64_t sizes[], int64_t shape[], size_t *bytes)
{
    int64_t dims[DIMENSIONS + 1];
    failure ignored;
    const struct program *p = find_program(sizes);
    if (PROGRAMS > 0 && p == NULL)
        return explain_sizes(sizes, &ignored);
    if (!shapes_of(p)(sizes, dims))
        return OTHER_SIZES;
    return shape_of(tensor, dims, rank, shape, bytes) ? CODE(OK) : OTHER_SIZES;
}

int NAME(input_shape)(int n, const int64_t sizes[], int64_t shape[], size_t *bytes)
{
    return tensor_shape(n, NAME(inputs)[n].rank, sizes, shape, bytes);
}

int NAME(output_shape)(int n, const int64_t sizes[], int64_t shape[], size_t *bytes)
{
    return tensor_shape(INPUTS + n, NAME(outputs)[n].rank, sizes, shape, bytes);
}
#else
int NAME(run)(struct NAME(model) * model, const void *const inputs[], void *const outputs[])
{
    if (model == NULL || (inputs == NULL && INPUTS > 0) || outputs == NULL)
        return CODE(NO_TENSOR);
    model->failure = (failure){0};
    return failed(model, compute(model, inputs, outputs, NULL, NULL));
}
#endif

void NAME(close)(struct NAME(model) * model)
{
    if (model == NULL)
        return;
    release(model);
    if (model->states != NULL)
        free_pages(model->states, PROGRAMS * (size_t)STATE_BYTES);
    leave(model->shared);
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
    case CODE(VALUE_RANGE):
        return "an input has a value that is not possible";
#if SIZES > 0
    case CODE(NO_CODE):
        return "there is no code for these sizes";
    case CODE(OTHER_SHAPE):
        return "an input has another size along an axis";
    case CODE(UNEQUAL_SIZES):
        return "a size has two values";
    case CODE(UNRELATED_SIZES):
        return "sizes do not fit each other";
    case CODE(SIZE_RANGE):
        return "there is no code for such a small or large size";
    case CODE(INDIVISIBLE_SIZE):
        return "there is no code for a size with this remainder";
    case CODE(UNIT_SIZE):
        return "there is no code for a size that is 1, or is not 1";
#endif
    default:
        return "no error of this model";
    }
}
