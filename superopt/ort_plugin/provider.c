/* An execution provider for onnxruntime 1.23 and later: it runs models that `superopt export --ort`
   compiled, and in Python compiles others when a session is made (host_compiler.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host_compiler.h"
#include "partition.h"

#ifndef SUPEROPT_VERSION
#define SUPEROPT_VERSION "0.0.0"
#endif
#define VENDOR "superopt"
#define MAX_MESSAGE 4096

const ort_function *ort_api, *ort_ep_api;

OrtStatus *fail(int code, const char *format, ...)
{
    char text[MAX_MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    int size = snprintf(text, sizeof text, "superopt: ");
    vsnprintf(text + size, sizeof text - (size_t)size, format, arguments);
    va_end(arguments);
    return ort_create_status(code, text);
}

static OrtStatus *create_state(node_info *info, void *context, void **out)
{
    (void)context;
    *out = info;
    return NULL;
}

static void release_state(node_info *info, void *state) { (void)info, (void)state; }

compiled_node node_functions(node_compute *compute, node_release *release)
{
    return (compiled_node){{ORT_VERSION, create_state, compute, release_state}, release};
}

static const char *provider_name(const provider *p) { return (void)p, PROVIDER_NAME; }

/* Return the nodes of a graph, which the caller frees. */
static OrtStatus *list_nodes(const OrtGraph *graph, const OrtNode ***out, size_t *count)
{
    TRY(ort_node_count(graph, count));
    *out = calloc(*count + 1, sizeof **out);
    if (*out == NULL)
        return fail(ORT_FAIL, "out of memory");
    OrtStatus *status = ort_nodes(graph, *out, *count);
    if (status != NULL)
        free(*out);
    return status;
}

static OrtStatus *get_capability(provider *self, const OrtGraph *graph, OrtSupport *support)
{
    const OrtFusionOptions options = {ORT_VERSION, true};
    const OrtNode **nodes;
    size_t count;
    bool any = false;
    (void)self;
    TRY(list_nodes(graph, &nodes, &count));
    OrtStatus *status = NULL;
    for (size_t n = 0; n < count && status == NULL; n++) {
        bool found;
        status = is_context_node(nodes[n], &found);
        if (status == NULL && found)
            status = ort_add_nodes(support, &nodes[n], 1, &options);
        any |= found;
    }
    free(nodes);
    return status != NULL || any ? status : host_claim(graph, support);
}

static OrtStatus *compile_graph(const provider *self, const OrtGraph *graph, const OrtNode *fused,
                                compiled_node **out)
{
    const OrtNode **nodes;
    size_t count;
    bool is_context = false;
    TRY(list_nodes(graph, &nodes, &count));
    OrtStatus *status = count == 1 ? is_context_node(nodes[0], &is_context) : NULL;
    if (status == NULL && is_context)
        status = open_partition(self, graph, nodes[0], fused, out);
    else if (status == NULL)
        status = host_compile(graph, fused, out);
    free(nodes);
    return status;
}

static void release_infos(provider *self, node_info **infos, size_t count)
{
    (void)self;
    for (size_t n = 0; n < count; n++)
        if (infos[n] != NULL) {
            compiled_node *node = (compiled_node *)infos[n];
            node->release(node);
        }
}

static OrtStatus *compile(provider *self, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          node_info **infos, OrtNode **context_nodes)
{
    (void)context_nodes;
    for (size_t n = 0; n < count; n++) {
        compiled_node *node;
        OrtStatus *status = compile_graph(self, graphs[n], fused[n], &node);
        if (status != NULL) {
            release_infos(self, infos, n);
            memset(infos, 0, count * sizeof *infos);
            return status;
        }
        infos[n] = &node->info;
    }
    return NULL;
}

static const char *factory_name(const factory *f) { return (void)f, PROVIDER_NAME; }

static const char *factory_vendor(const factory *f) { return (void)f, VENDOR; }

static const char *factory_version(const factory *f) { return (void)f, SUPEROPT_VERSION; }

static uint32_t vendor_id(const factory *f) { return (void)f, 0; }

static OrtStatus *devices(factory *self, const OrtDevice *const *given, size_t count, void **out,
                          size_t room, size_t *found)
{
    *found = 0;
    for (size_t n = 0; n < count && *found < room; n++)
        if (ort_device_type(given[n]) == ORT_DEVICE_CPU) {
            TRY(ort_create_ep_device(self, given[n], NULL, NULL, &out[*found]));
            ++*found;
        }
    return NULL;
}

/* Return an option of a session, which the caller frees; NULL if it is not set. */
static OrtStatus *read_option(const OrtOptions *options, const char *name, char **out)
{
    int found = 0;
    size_t size = 0;
    *out = NULL;
    TRY(ort_has_option(options, name, &found));
    if (!found)
        return NULL;
    OrtStatus *status = ort_option(options, name, NULL, &size);
    if (status != NULL) /* it reports that there is no room, and the size */
        ort_release_status(status);
    *out = calloc(size + 1, 1);
    return *out == NULL ? fail(ORT_FAIL, "out of memory") : ort_option(options, name, *out, &size);
}

static void release_provider(factory *self, provider *p)
{
    (void)self;
    free(p->folder);
    free(p);
}

static OrtStatus *create_provider(factory *self, const OrtDevice *const *given,
                                  const void *const *metadata, size_t count,
                                  const OrtOptions *options, const void *logger, provider **out)
{
    char *threads = NULL;
    (void)given, (void)metadata, (void)count, (void)logger;
    provider *p = calloc(1, sizeof *p);
    if (p == NULL)
        return fail(ORT_FAIL, "out of memory");
    p->version = ORT_VERSION;
    p->name = provider_name;
    p->get_capability = get_capability;
    p->compile = compile;
    p->release_infos = release_infos;
    OrtStatus *status = read_option(options, OPTION_PREFIX "folder", &p->folder);
    if (status == NULL)
        status = read_option(options, OPTION_PREFIX "threads", &threads);
    if (status == NULL && threads != NULL && strcmp(threads, "own") == 0)
        p->uses_own_threads = 1;
    else if (status == NULL && threads != NULL && strcmp(threads, "onnxruntime") != 0)
        status = fail(ORT_INVALID_ARGUMENT, "the option threads must be \"onnxruntime\" or \"own\", got "
                                            "\"%s\"", threads);
    free(threads);
    if (status == NULL)
        *out = p;
    else
        release_provider(self, p);
    return status;
}

static OrtStatus *check_compatibility(factory *self, const OrtDevice *const *given, size_t count,
                                      const char *text, int *out)
{
    (void)self, (void)given, (void)count, (void)text;
    *out = 0; /* not applicable */
    return NULL;
}

/* Tensors are in onnxruntime's memory of the processor. */
static OrtStatus *create_allocator(factory *self, const void *memory, const void *options, void **out)
{
    (void)self, (void)memory, (void)options;
    *out = NULL;
    return NULL;
}

static void release_allocator(factory *self, void *allocator) { (void)self, (void)allocator; }

static OrtStatus *create_data_transfer(factory *self, void **out)
{
    (void)self;
    *out = NULL;
    return NULL;
}

static bool is_stream_aware(const factory *self) { return (void)self, false; }

static OrtStatus *create_stream(factory *self, const void *device, const void *options, void **out)
{
    (void)self, (void)device, (void)options;
    *out = NULL;
    return NULL;
}

OrtStatus *CreateEpFactories(const char *registration, const OrtApiBase *base, const void *logger,
                             factory **out, size_t room, size_t *count)
{
    (void)registration, (void)logger;
    *count = 0;
    ort_api = base->get_api(ORT_VERSION);
    if (ort_api == NULL) { /* an older onnxruntime, whose table begins alike */
        ort_api = base->get_api(1);
        return fail(ORT_FAIL, "onnxruntime %s has no providers that compile; install 1.23 or later",
                    base->get_version());
    }
    ort_ep_api = ort_get_ep_api();
    factory *made = room == 0 ? NULL : calloc(1, sizeof *made);
    if (made == NULL)
        return fail(ORT_FAIL, "out of memory");
    *made = (factory){
        .version = ORT_VERSION,
        .name = factory_name,
        .vendor = factory_vendor,
        .devices = devices,
        .create = create_provider,
        .release = release_provider,
        .vendor_id = vendor_id,
        .get_version = factory_version,
        .check_compatibility = check_compatibility,
        .create_allocator = create_allocator,
        .release_allocator = release_allocator,
        .create_data_transfer = create_data_transfer,
        .is_stream_aware = is_stream_aware,
        .create_stream = create_stream,
    };
    out[0] = made;
    *count = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(factory *made)
{
    free(made);
    return NULL;
}
