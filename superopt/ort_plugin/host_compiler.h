/* Compilation when a session is made, by functions that a program installs: superopt in Python. */
#ifndef SUPEROPT_HOST_COMPILER_H
#define SUPEROPT_HOST_COMPILER_H

#include "ort_api.h"

/* An input of a call. */
typedef struct {
    const void *data;
    const int64_t *shape;
    int64_t rank;
    int64_t type; /* element type, by ONNX's numbers */
} call_tensor;

/* Functions return 0; or -1, with a message in `text`, which has `size` bytes.
   claim: choose nodes of a graph (ort_add_nodes). compile: write the number of a compiled graph that
   takes the place of a node. run: compute it; outputs are made by SuperoptOutput. release: forget
   a compiled graph. */
typedef struct {
    int (*claim)(const OrtGraph *, OrtSupport *, const ort_function *api, const ort_function *ep_api,
                 char *text, size_t size);
    int (*compile)(const OrtGraph *, const OrtNode *fused, const ort_function *api, int64_t *number,
                   char *text, size_t size);
    int (*run)(int64_t number, const call_tensor *inputs, size_t count, OrtKernelContext *, char *text,
               size_t size);
    void (*release)(int64_t number);
} host_compiler;

/* Install functions; NULL removes them: calls fail from then on. */
void SuperoptSetCompiler(const host_compiler *functions);

/* Make output n of a call; return its data, or NULL. */
void *SuperoptOutput(OrtKernelContext *context, size_t n, const int64_t *shape, size_t rank);

/* Let the host's compiler claim nodes, if there is one. */
OrtStatus *host_claim(const OrtGraph *graph, OrtSupport *support);

/* Let it compile a graph that takes the place of a node. */
OrtStatus *host_compile(const OrtGraph *graph, const OrtNode *fused, compiled_node **out);

#endif
