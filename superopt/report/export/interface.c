/* The interface that is the same for all models: see model_interface.h. */

static void *interface_open(const char *weights, int is_pooled, int *error)
{
    return open_model(weights, is_pooled, error);
}

static void *interface_clone(const void *model, int *error)
{
    return NAME(clone)(model, error);
}

static int interface_infer_sizes(void *model, const int64_t *const shapes[], int64_t sizes[])
{
#if SIZES > 0
    return NAME(infer_sizes)(model, shapes, sizes);
#else
    (void)model, (void)shapes, (void)sizes;
    return CODE(OK);
#endif
}

static int interface_output_shape(int n, const int64_t sizes[], int64_t shape[], size_t *bytes)
{
#if SIZES > 0
    return NAME(output_shape)(n, sizes, shape, bytes);
#else
    (void)sizes;
    memcpy(shape, NAME(outputs)[n].shape, (size_t)NAME(outputs)[n].rank * sizeof *shape);
    *bytes = NAME(outputs)[n].bytes;
    return CODE(OK);
#endif
}

static int interface_run(void *given, const void *const inputs[], void *const outputs[],
                         const int64_t sizes[], superopt_parallel_for *parallel, void *context)
{
    struct NAME(model) *model = given;
    model->failure = (failure){0};
    int error = prepare(model, sizes);
    return failed(model, error == CODE(OK) ? compute(model, inputs, outputs, parallel, context)
                                           : error);
}

static void interface_close(void *model) { NAME(close)(model); }

static int interface_message(const void *model, char text[], size_t size)
{
    return NAME(message)(model, text, size);
}

const superopt_interface NAME(interface) = {
    .version = SUPEROPT_INTERFACE_VERSION,
    .input_count = INPUTS,
    .output_count = OUTPUTS,
    .size_count = SIZES,
    .threads = THREADS,
    .inputs = (const superopt_tensor *)NAME(inputs),
    .outputs = (const superopt_tensor *)NAME(outputs),
    .open = interface_open,
    .clone = interface_clone,
    .infer_sizes = interface_infer_sizes,
    .output_shape = interface_output_shape,
    .run = interface_run,
    .close = interface_close,
    .error = NAME(error),
    .message = interface_message,
};
