#include "host_compiler.h"

#include <stdlib.h>

#define MAX_MESSAGE 2048

static host_compiler installed; /* all NULL if there is none */

/* number: of the compiled graph. */
typedef struct {
    compiled_node base;
    int64_t number;
} host_node;

void SuperoptSetCompiler(const host_compiler *functions)
{
    installed = functions == NULL ? (host_compiler){NULL, NULL, NULL, NULL} : *functions;
}

OrtStatus *host_claim(const OrtGraph *graph, OrtSupport *support)
{
    char text[MAX_MESSAGE] = "";
    if (installed.claim == NULL)
        return NULL;
    return installed.claim(graph, support, ort_api, ort_ep_api, text, sizeof text) == 0
               ? NULL
               : fail(ORT_EP_FAIL, "%s", text);
}

void *SuperoptOutput(OrtKernelContext *context, size_t n, const int64_t *shape, size_t rank)
{
    OrtValue *value;
    void *data = NULL;
    OrtStatus *status = ort_output(context, n, shape, rank, &value);
    if (status == NULL)
        status = ort_tensor_data(value, &data);
    if (status == NULL)
        return data;
    ort_release_status(status);
    return NULL;
}

/* Describe an input. *dimensions: released by the caller. */
static OrtStatus *describe_input(const OrtKernelContext *context, size_t n, call_tensor *out,
                                 int64_t **dimensions)
{
    const OrtValue *value;
    OrtShape *shape;
    size_t rank;
    int type;
    TRY(ort_input(context, n, &value));
    TRY(ort_tensor_data(value, (void **)&out->data));
    TRY(ort_shape(value, &shape));
    OrtStatus *status = ort_rank(shape, &rank);
    if (status == NULL)
        status = ort_element_type(shape, &type);
    if (status == NULL && (*dimensions = calloc(rank + 1, sizeof **dimensions)) == NULL)
        status = fail(ORT_FAIL, "out of memory");
    if (status == NULL)
        status = ort_dimensions(shape, *dimensions, rank);
    ort_release_shape(shape);
    out->shape = *dimensions;
    out->rank = (int64_t)rank;
    out->type = type;
    return status;
}

static OrtStatus *run_host(const host_node *node, OrtKernelContext *context, size_t count,
                           call_tensor *inputs, int64_t **dimensions)
{
    char text[MAX_MESSAGE] = "";
    for (size_t n = 0; n < count; n++)
        TRY(describe_input(context, n, &inputs[n], &dimensions[n]));
    if (installed.run == NULL)
        return fail(ORT_EP_FAIL, "superopt compiled this model in Python, which has ended");
    return installed.run(node->number, inputs, count, context, text, sizeof text) == 0
               ? NULL
               : fail(ORT_EP_FAIL, "%s", text);
}

static OrtStatus *compute(node_info *info, void *state, OrtKernelContext *context)
{
    size_t count;
    (void)state;
    TRY(ort_input_count(context, &count));
    call_tensor *inputs = calloc(count + 1, sizeof *inputs);
    int64_t **dimensions = calloc(count + 1, sizeof *dimensions);
    OrtStatus *status = inputs == NULL || dimensions == NULL
                            ? fail(ORT_FAIL, "out of memory")
                            : run_host((host_node *)info, context, count, inputs, dimensions);
    for (size_t n = 0; dimensions != NULL && n < count; n++)
        free(dimensions[n]);
    free(dimensions);
    free(inputs);
    return status;
}

static void release(compiled_node *base)
{
    host_node *node = (host_node *)base;
    if (installed.release != NULL)
        installed.release(node->number);
    free(node);
}

OrtStatus *host_compile(const OrtGraph *graph, const OrtNode *fused, compiled_node **out)
{
    char text[MAX_MESSAGE] = "";
    host_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return fail(ORT_FAIL, "out of memory");
    node->base = node_functions(compute, release);
    if (installed.compile == NULL
        || installed.compile(graph, fused, ort_api, &node->number, text, sizeof text) != 0) {
        free(node);
        return fail(ORT_EP_FAIL, "%s", *text ? text : "superopt compiles only in Python");
    }
    *out = &node->base;
    return NULL;
}
