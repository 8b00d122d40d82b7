/* What the provider uses of onnxruntime's C API, without its headers: OrtApi and OrtEpApi are tables
   of function pointers to which versions only append, and OrtEp and OrtEpFactory are structures to
   which versions only append. Numbers and fields are those of version 1.23
   (onnxruntime_c_api.h, onnxruntime_ep_c_api.h), the first with providers that compile. */
#ifndef SUPEROPT_ORT_API_H
#define SUPEROPT_ORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION 23
#define PROVIDER_NAME "SuperoptExecutionProvider"
#define OPTION_PREFIX "ep.superoptexecutionprovider."

typedef struct OrtStatus OrtStatus;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSupport OrtSupport; /* OrtEpGraphSupportInfo */
typedef struct OrtDevice OrtDevice;   /* OrtHardwareDevice */
typedef struct OrtOptions OrtOptions; /* OrtSessionOptions */
typedef struct OrtShape OrtShape;     /* OrtTensorTypeAndShapeInfo */

typedef void (*ort_function)(void);
typedef struct {
    const ort_function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} OrtApiBase;

extern const ort_function *ort_api, *ort_ep_api;

#define ORT_CALL(table, slot, result, ...) ((result(*)(__VA_ARGS__))(table)[slot])
#define ort_create_status ORT_CALL(ort_api, 0, OrtStatus *, int, const char *)
#define ort_status_text ORT_CALL(ort_api, 2, const char *, const OrtStatus *)
#define ort_tensor_data ORT_CALL(ort_api, 51, OrtStatus *, const OrtValue *, void **)
#define ort_rank ORT_CALL(ort_api, 61, OrtStatus *, const OrtShape *, size_t *)
#define ort_dimensions ORT_CALL(ort_api, 62, OrtStatus *, const OrtShape *, int64_t *, size_t)
#define ort_element_type ORT_CALL(ort_api, 60, OrtStatus *, const OrtShape *, int *)
#define ort_shape ORT_CALL(ort_api, 65, OrtStatus *, const OrtValue *, OrtShape **)
#define ort_input_count ORT_CALL(ort_api, 88, OrtStatus *, const OrtKernelContext *, size_t *)
#define ort_input \
    ORT_CALL(ort_api, 90, OrtStatus *, const OrtKernelContext *, size_t, const OrtValue **)
#define ort_output \
    ORT_CALL(ort_api, 91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)
#define ort_release_status ORT_CALL(ort_api, 93, void, OrtStatus *)
#define ort_release_shape ORT_CALL(ort_api, 99, void, OrtShape *)
#define ort_has_option ORT_CALL(ort_api, 237, OrtStatus *, const OrtOptions *, const char *, int *)
#define ort_option \
    ORT_CALL(ort_api, 238, OrtStatus *, const OrtOptions *, const char *, char *, size_t *)
#define ort_read_attribute \
    ORT_CALL(ort_api, 272, OrtStatus *, const OrtOpAttr *, int, void *, size_t, size_t *)
#define ort_parallel_for                                                                         \
    ORT_CALL(ort_api, 274, OrtStatus *, const OrtKernelContext *, void (*)(void *, size_t), size_t, \
             size_t, void *)
#define ort_value_name ORT_CALL(ort_api, 289, OrtStatus *, const OrtValueInfo *, const char **)
#define ort_device_type ORT_CALL(ort_api, 307, int, const OrtDevice *)
#define ort_get_ep_api ORT_CALL(ort_api, 317, const ort_function *, void)
#define ort_tensor_bytes ORT_CALL(ort_api, 318, OrtStatus *, const OrtValue *, size_t *)
#define ort_model_path ORT_CALL(ort_api, 334, OrtStatus *, const OrtGraph *, const char **)
#define ort_node_count ORT_CALL(ort_api, 344, OrtStatus *, const OrtGraph *, size_t *)
#define ort_nodes ORT_CALL(ort_api, 345, OrtStatus *, const OrtGraph *, const OrtNode **, size_t)
#define ort_operator_type ORT_CALL(ort_api, 350, OrtStatus *, const OrtNode *, const char **)
#define ort_operator_domain ORT_CALL(ort_api, 351, OrtStatus *, const OrtNode *, const char **)
#define ort_node_input_count ORT_CALL(ort_api, 353, OrtStatus *, const OrtNode *, size_t *)
#define ort_node_inputs \
    ORT_CALL(ort_api, 354, OrtStatus *, const OrtNode *, const OrtValueInfo **, size_t)
#define ort_node_output_count ORT_CALL(ort_api, 355, OrtStatus *, const OrtNode *, size_t *)
#define ort_node_outputs \
    ORT_CALL(ort_api, 356, OrtStatus *, const OrtNode *, const OrtValueInfo **, size_t)
#define ort_attribute \
    ORT_CALL(ort_api, 361, OrtStatus *, const OrtNode *, const char *, const OrtOpAttr **)
#define ort_create_ep_device                                                                   \
    ORT_CALL(ort_ep_api, 0, OrtStatus *, void *, const OrtDevice *, const void *, const void *, \
             void **)
#define ort_add_nodes \
    ORT_CALL(ort_ep_api, 2, OrtStatus *, OrtSupport *, const OrtNode *const *, size_t, const void *)

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_EP_FAIL = 11 }; /* OrtErrorCode */
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_STRING = 5 };          /* OrtOpAttrType */
enum { ORT_DEVICE_CPU = 0 };                                       /* OrtHardwareDeviceType */

typedef struct node_info node_info;
typedef struct provider provider;
typedef struct factory factory;

typedef struct {
    uint32_t version;
    bool drop_constant_initializers;
} OrtFusionOptions; /* OrtNodeFusionOptions */

/* OrtNodeComputeInfo */
struct node_info {
    uint32_t version;
    OrtStatus *(*create_state)(node_info *, void *, void **);
    OrtStatus *(*compute)(node_info *, void *, OrtKernelContext *);
    void (*release_state)(node_info *, void *);
};

/* A node that this provider compiled. release: when its session ends. */
typedef struct compiled_node {
    node_info info;
    void (*release)(struct compiled_node *);
} compiled_node;

/* OrtEp */
struct provider {
    uint32_t version;
    const char *(*name)(const provider *);
    OrtStatus *(*get_capability)(provider *, const OrtGraph *, OrtSupport *);
    OrtStatus *(*compile)(provider *, const OrtGraph **, const OrtNode **, size_t, node_info **,
                          OrtNode **);
    void (*release_infos)(provider *, node_info **, size_t);
    void *optional[32]; /* of this version and of later ones */
    int uses_own_threads;
    char *folder; /* of models that are not files; NULL for none */
};

/* OrtEpFactory */
struct factory {
    uint32_t version;
    const char *(*name)(const factory *);
    const char *(*vendor)(const factory *);
    OrtStatus *(*devices)(factory *, const OrtDevice *const *, size_t, void **, size_t, size_t *);
    OrtStatus *(*create)(factory *, const OrtDevice *const *, const void *const *, size_t,
                         const OrtOptions *, const void *, provider **);
    void (*release)(factory *, provider *);
    uint32_t (*vendor_id)(const factory *);
    const char *(*get_version)(const factory *);
    OrtStatus *(*check_compatibility)(factory *, const OrtDevice *const *, size_t, const char *,
                                      int *);
    OrtStatus *(*create_allocator)(factory *, const void *, const void *, void **);
    void (*release_allocator)(factory *, void *);
    OrtStatus *(*create_data_transfer)(factory *, void **);
    bool (*is_stream_aware)(const factory *);
    OrtStatus *(*create_stream)(factory *, const void *, const void *, void **);
    void *optional[16]; /* of later versions */
};

typedef OrtStatus *node_compute(node_info *, void *, OrtKernelContext *);
typedef void node_release(compiled_node *);

/* Return the functions of a compiled node without a state of its own. */
compiled_node node_functions(node_compute *compute, node_release *release);

/* Return a status with this text: what failed, why, and what to do. */
OrtStatus *fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define TRY(call)                 \
    do {                          \
        OrtStatus *tried = (call); \
        if (tried != NULL)        \
            return tried;         \
    } while (0)

#endif
