/* The interface of an exported model that is the same for all of them: the symbol PREFIX_interface
   of its library. A program that finds libraries at run time (dlopen) needs only this text. */
#ifndef SUPEROPT_MODEL_INTERFACE_H
#define SUPEROPT_MODEL_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

#define SUPEROPT_INTERFACE_VERSION 1

/* As PREFIX_tensor of the model's header. */
typedef struct {
    const char *name;
    int type; /* element type, by ONNX's numbers */
    int rank;
    const int64_t *shape; /* -1 where sizes decide */
    size_t bytes;         /* 0 if sizes decide */
} superopt_tensor;

/* Call f(data, n) for n = 0 .. count - 1, in any order, on any threads; return after the last. */
typedef void superopt_parallel_for(void *context, void (*f)(void *data, size_t n), size_t count,
                                   void *data);

/* Error codes, 0 for none, are those of the model's header; `error` returns their texts.

   open: is_pooled: `run` is given a pool's function, and the model has no threads of its own.
   infer_sizes, output_shape: as in the header; models of fixed sizes have them too.
   run: parallel is called with `context`; both are NULL unless the model is pooled. */
typedef struct {
    int version, input_count, output_count, size_count, threads;
    const superopt_tensor *inputs, *outputs;
    void *(*open)(const char *weights, int is_pooled, int *error);
    void *(*clone)(const void *model, int *error);
    int (*infer_sizes)(void *model, const int64_t *const shapes[], int64_t sizes[]);
    int (*output_shape)(int n, const int64_t sizes[], int64_t shape[], size_t *bytes);
    int (*run)(void *model, const void *const inputs[], void *const outputs[], const int64_t sizes[],
               superopt_parallel_for *parallel, void *context);
    void (*close)(void *model);
    const char *(*error)(int error);
    int (*message)(const void *model, char text[], size_t size);
} superopt_interface;

#endif
