#define _GNU_SOURCE
#include "partition.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "context_file.h"

#define MAX_RANK 64
#define MAX_MESSAGE 1024

/* A handle of the model, which runs one call at a time, and the arrays of that call. */
typedef struct handle {
    void *model;
    const void **inputs;
    void **outputs;
    const int64_t **shapes; /* of inputs, in `dimensions` */
    int64_t *dimensions, *sizes;
    struct handle *next; /* in the list of those that are free */
} handle;

/* input_numbers, output_numbers: of the model's tensors among those of a call. */
typedef struct {
    compiled_node base;
    opened_model opened;
    size_t *input_numbers, *output_numbers;
    pthread_mutex_t lock;
    handle *free_handles;
} partition;

/* Read a text attribute, which the caller frees; NULL if there is none. */
static OrtStatus *read_text(const OrtNode *node, const char *name, char **out, size_t *size)
{
    const OrtOpAttr *attribute = NULL;
    *out = NULL;
    *size = 0;
    OrtStatus *status = ort_attribute(node, name, &attribute);
    if (status != NULL || attribute == NULL) {
        if (status != NULL) /* later versions report a missing attribute so */
            ort_release_status(status);
        return NULL;
    }
    status = ort_read_attribute(attribute, ORT_ATTRIBUTE_STRING, NULL, 0, size);
    if (status != NULL) /* it reports that there is no room, and the size */
        ort_release_status(status);
    *out = malloc(*size + 1);
    if (*out == NULL)
        return fail(ORT_FAIL, "out of memory");
    status = ort_read_attribute(attribute, ORT_ATTRIBUTE_STRING, *out, *size, size);
    (*out)[*size] = '\0';
    if (status != NULL) {
        free(*out);
        *out = NULL;
    }
    return status;
}

static int64_t read_number(const OrtNode *node, const char *name, int64_t missing)
{
    const OrtOpAttr *attribute = NULL;
    int64_t out = missing;
    size_t size;
    OrtStatus *status = ort_attribute(node, name, &attribute);
    if (status == NULL && attribute != NULL)
        status = ort_read_attribute(attribute, ORT_ATTRIBUTE_INT, &out, sizeof out, &size);
    if (status == NULL)
        return attribute == NULL ? missing : out;
    ort_release_status(status);
    return missing;
}

OrtStatus *is_context_node(const OrtNode *node, bool *found)
{
    const char *kind, *domain;
    char *source;
    size_t size;
    *found = false;
    TRY(ort_operator_type(node, &kind));
    TRY(ort_operator_domain(node, &domain));
    if (strcmp(kind, "EPContext") != 0 || strcmp(domain, "com.microsoft") != 0)
        return NULL;
    TRY(read_text(node, "source", &source, &size));
    *found = source != NULL && strcmp(source, PROVIDER_NAME) == 0;
    free(source);
    return NULL;
}

/* Return the folder that paths of a model's contexts are relative to; the caller frees it. */
static OrtStatus *find_folder(const provider *owner, const OrtGraph *graph, char **out)
{
    const char *path = NULL;
    TRY(ort_model_path(graph, &path));
    *out = path != NULL && *path != '\0' ? folder_of(path)
           : owner->folder != NULL       ? strdup(owner->folder)
                                         : NULL;
    return *out == NULL ? fail(ORT_INVALID_ARGUMENT,
                               "a model from memory names files, and has no folder: set the option "
                               "\"folder\" of %s, or export it with --embed", PROVIDER_NAME)
                        : NULL;
}

/* Open the library that an EPContext node names or holds. */
static OrtStatus *open_node(const provider *owner, const OrtGraph *graph, const OrtNode *node,
                            opened_model *out)
{
    char *context, *folder = NULL, *text = NULL, *path = NULL;
    size_t size;
    int is_pooled = !owner->uses_own_threads;
    TRY(read_text(node, "ep_cache_context", &context, &size));
    if (context == NULL)
        return fail(ORT_INVALID_ARGUMENT, "an EPContext node of %s has no ep_cache_context: export the "
                                          "model again", PROVIDER_NAME);
    OrtStatus *status = NULL;
    if (read_number(node, "embed_mode", 1) != 0)
        status = open_context(context, size, ".", is_pooled, out);
    else if (!stays_within(context))
        status = fail(ORT_INVALID_ARGUMENT, "a context is in the file %s: its path must be relative and "
                                            "stay in the model's folder; export the model again",
                      context);
    else if ((status = find_folder(owner, graph, &folder)) == NULL) {
        path = join_path(folder, context);
        status = path == NULL ? fail(ORT_FAIL, "out of memory") : read_file(path, &text, &size);
        if (status == NULL) {
            free(folder);
            folder = folder_of(path);
            status = open_context(text, size, folder, is_pooled, out);
        }
    }
    free(context);
    free(folder);
    free(text);
    free(path);
    return status;
}

/* Find a value among those of the call. */
static OrtStatus *find_value(const OrtValueInfo *wanted, const OrtValueInfo *const *among,
                             size_t count, size_t *out)
{
    const char *name, *other;
    TRY(ort_value_name(wanted, &name));
    for (*out = 0; *out < count; ++*out) {
        TRY(ort_value_name(among[*out], &other));
        if (strcmp(name, other) == 0)
            return NULL;
    }
    return fail(ORT_FAIL, "onnxruntime does not pass %s to an EPContext node of %s: report this", name,
                PROVIDER_NAME);
}

typedef OrtStatus *count_values(const OrtNode *, size_t *);
typedef OrtStatus *list_values(const OrtNode *, const OrtValueInfo **, size_t);

/* Write the numbers of a node's values among those of the fused node. */
static OrtStatus *match_values(const OrtNode *node, const OrtNode *fused, count_values *count,
                               list_values *list, int wanted, const char *what, size_t **out)
{
    size_t own, others;
    TRY(count(node, &own));
    TRY(count(fused, &others));
    if (own != (size_t)wanted)
        return fail(ORT_INVALID_ARGUMENT, "an EPContext node has %zu %s, and its library %d: they are of "
                                          "different exports; export the model again", own, what, wanted);
    const OrtValueInfo **values = calloc(own + others + 1, sizeof *values);
    *out = calloc(own + 1, sizeof **out);
    OrtStatus *status = values == NULL || *out == NULL ? fail(ORT_FAIL, "out of memory") : NULL;
    if (status == NULL)
        status = list(node, values, own);
    if (status == NULL)
        status = list(fused, values + own, others);
    for (size_t n = 0; status == NULL && n < own; n++)
        status = find_value(values[n], values + own, others, &(*out)[n]);
    free(values);
    return status;
}

static void free_handle(handle *h)
{
    free(h->inputs);
    free(h->outputs);
    free(h->shapes);
    free(h->dimensions);
    free(h->sizes);
    free(h);
}

/* Return a handle of an opened model; NULL if there is no memory. */
static handle *new_handle(const superopt_interface *about, void *model)
{
    size_t dimensions = 1;
    for (int n = 0; n < about->input_count; n++)
        dimensions += (size_t)about->inputs[n].rank;
    handle *out = calloc(1, sizeof *out);
    if (out == NULL)
        return NULL;
    out->model = model;
    out->inputs = calloc((size_t)about->input_count + 1, sizeof *out->inputs);
    out->outputs = calloc((size_t)about->output_count + 1, sizeof *out->outputs);
    out->shapes = calloc((size_t)about->input_count + 1, sizeof *out->shapes);
    out->dimensions = calloc(dimensions, sizeof *out->dimensions);
    out->sizes = calloc((size_t)about->size_count + 1, sizeof *out->sizes);
    if (out->inputs && out->outputs && out->shapes && out->dimensions && out->sizes)
        return out;
    free_handle(out);
    return NULL;
}

/* Take a free handle, or make another: one for each call that runs at the same time. */
static OrtStatus *take_handle(partition *p, handle **out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->free_handles;
    if (*out != NULL)
        p->free_handles = (*out)->next;
    pthread_mutex_unlock(&p->lock);
    if (*out != NULL)
        return NULL;
    const superopt_interface *about = p->opened.interface;
    int error = 0;
    void *model = about->clone(p->opened.model, &error);
    if (model == NULL)
        return fail(ORT_EP_FAIL, "another call at the same time is impossible: %s", about->error(error));
    *out = new_handle(about, model);
    if (*out != NULL)
        return NULL;
    about->close(model);
    return fail(ORT_FAIL, "out of memory");
}

static void give_handle(partition *p, handle *h)
{
    pthread_mutex_lock(&p->lock);
    h->next = p->free_handles;
    p->free_handles = h;
    pthread_mutex_unlock(&p->lock);
}

static OrtStatus *read_shape(const OrtValue *value, int rank, int64_t out[])
{
    OrtShape *shape;
    size_t found;
    TRY(ort_shape(value, &shape));
    OrtStatus *status = ort_rank(shape, &found);
    if (status == NULL && found != (size_t)rank)
        status = fail(ORT_INVALID_ARGUMENT, "an input has %zu axes, and must have %d", found, rank);
    if (status == NULL)
        status = ort_dimensions(shape, out, found);
    ort_release_shape(shape);
    return status;
}

static OrtStatus *read_inputs(const partition *p, handle *h, OrtKernelContext *context)
{
    const superopt_interface *about = p->opened.interface;
    int64_t *dimensions = h->dimensions;
    for (int n = 0; n < about->input_count; n++) {
        const superopt_tensor *t = &about->inputs[n];
        const OrtValue *value;
        size_t bytes;
        TRY(ort_input(context, p->input_numbers[n], &value));
        TRY(ort_tensor_data(value, (void **)&h->inputs[n]));
        if (about->size_count > 0) {
            TRY(read_shape(value, t->rank, dimensions));
            h->shapes[n] = dimensions;
            dimensions += t->rank;
        }
        else {
            TRY(ort_tensor_bytes(value, &bytes));
            if (bytes != t->bytes)
                return fail(ORT_INVALID_ARGUMENT, "input %s has %zu bytes, and must have %zu", t->name,
                            bytes, t->bytes);
        }
    }
    return NULL;
}

/* Return the status of an error of the model. */
static OrtStatus *model_error(const partition *p, const handle *h, int error)
{
    char text[MAX_MESSAGE] = "";
    if (p->opened.interface->message(h->model, text, sizeof text) <= 0 || *text == '\0')
        return fail(ORT_EP_FAIL, "%s", p->opened.interface->error(error));
    return fail(ORT_INVALID_ARGUMENT, "%s", text);
}

/* onnxruntime's threads as those of a pooled model. */
static void run_parallel(void *context, void (*f)(void *, size_t), size_t count, void *data)
{
    OrtStatus *status = ort_parallel_for(context, f, count, count, data);
    if (status == NULL)
        return;
    ort_release_status(status);
    for (size_t n = 0; n < count; n++)
        f(data, n);
}

static OrtStatus *create_outputs(const partition *p, handle *h, OrtKernelContext *context)
{
    const superopt_interface *about = p->opened.interface;
    for (int n = 0; n < about->output_count; n++) {
        int64_t shape[MAX_RANK];
        size_t bytes;
        OrtValue *value;
        if (about->output_shape(n, h->sizes, shape, &bytes) != 0) {
            /* the same sizes are an error of a run, which keeps the reason in the handle */
            int error = about->run(h->model, h->inputs, h->outputs, h->sizes, run_parallel, context);
            return model_error(p, h, error);
        }
        TRY(ort_output(context, p->output_numbers[n], shape, (size_t)about->outputs[n].rank, &value));
        TRY(ort_tensor_data(value, &h->outputs[n]));
    }
    return NULL;
}

static OrtStatus *run_handle(const partition *p, handle *h, OrtKernelContext *context)
{
    const superopt_interface *about = p->opened.interface;
    TRY(read_inputs(p, h, context));
    int error = about->infer_sizes(h->model, h->shapes, h->sizes);
    if (error != 0)
        return model_error(p, h, error);
    TRY(create_outputs(p, h, context));
    error = about->run(h->model, h->inputs, h->outputs, h->sizes, run_parallel, context);
    return error == 0 ? NULL : model_error(p, h, error);
}

static OrtStatus *compute(node_info *info, void *state, OrtKernelContext *context)
{
    partition *p = (partition *)info;
    handle *h;
    (void)state;
    TRY(take_handle(p, &h));
    OrtStatus *status = run_handle(p, h, context);
    give_handle(p, h);
    return status;
}

static void close_partition(compiled_node *node)
{
    partition *p = (partition *)node;
    if (p->free_handles == NULL && p->opened.model != NULL)
        p->opened.interface->close(p->opened.model);
    while (p->free_handles != NULL) { /* that of opened.model is among them */
        handle *h = p->free_handles;
        p->free_handles = h->next;
        p->opened.interface->close(h->model);
        free_handle(h);
    }
    if (p->opened.library != NULL)
        dlclose(p->opened.library);
    free(p->input_numbers);
    free(p->output_numbers);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

OrtStatus *open_partition(const provider *owner, const OrtGraph *graph, const OrtNode *node,
                          const OrtNode *fused, compiled_node **out)
{
    partition *p = calloc(1, sizeof *p);
    if (p == NULL)
        return fail(ORT_FAIL, "out of memory");
    pthread_mutex_init(&p->lock, NULL);
    p->base = node_functions(compute, close_partition);
    OrtStatus *status = open_node(owner, graph, node, &p->opened);
    const superopt_interface *about = p->opened.interface;
    if (status == NULL)
        status = match_values(node, fused, ort_node_input_count, ort_node_inputs, about->input_count,
                              "inputs", &p->input_numbers);
    if (status == NULL)
        status = match_values(node, fused, ort_node_output_count, ort_node_outputs,
                              about->output_count, "outputs", &p->output_numbers);
    if (status == NULL && (p->free_handles = new_handle(about, p->opened.model)) == NULL)
        status = fail(ORT_FAIL, "out of memory");
    if (status != NULL) {
        close_partition(&p->base);
        return status;
    }
    *out = &p->base;
    return NULL;
}
