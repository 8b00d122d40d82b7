/* A program that uses onnxruntime's C API, without its headers: functions by their numbers in the
   table. host LIBRARY-OF-ONNXRUNTIME PROVIDER MODEL: runs the model on ones and prints the outputs'
   sums. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *handle;
typedef void (*function)(void);
typedef struct {
    const function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} base;

static const function *api;

#define CALL(slot, ...) ((handle(*)(__VA_ARGS__))api[slot])

static void check(handle status)
{
    if (status == NULL)
        return;
    puts(((const char *(*)(handle))api[2])(status));
    exit(1);
}

enum { COUNT = 2 * 3 * 9 * 9 };

int main(int count, char **words)
{
    static float x[COUNT];
    static const int64_t shape[] = {2, 3, 9, 9};
    static const char *const inputs[] = {"x"}, *const outputs[] = {"y", "d"};
    static const int sizes[] = {2 * 10, 2 * 16 * 9 * 9};
    void *library = count == 4 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (library == NULL)
        return 2;
    const base *found = ((const base *(*)(void))dlsym(library, "OrtGetApiBase"))();
    api = found->get_api(23);
    handle env, options, session, memory, value, made[2] = {NULL, NULL};
    const handle *devices, *chosen = NULL;
    size_t device_count;
    check(CALL(3, int, const char *, handle *)(3, "host", &env));
    check(CALL(301, handle, const char *, const char *)(env, "superopt", words[2]));
    check(CALL(303, handle, const handle **, size_t *)(env, &devices, &device_count));
    for (size_t n = 0; n < device_count; n++) {
        const char *name = ((const char *(*)(handle))api[312])(devices[n]);
        if (name[0] == 'S')
            chosen = &devices[n];
    }
    check(CALL(10, handle *)(&options));
    check(CALL(304, handle, handle, const handle *, size_t, const char *const *, const char *const *,
               size_t)(options, env, chosen, 1, NULL, NULL, 0));
    check(CALL(7, handle, const char *, handle, handle *)(env, words[3], options, &session));
    for (int n = 0; n < COUNT; n++)
        x[n] = 1;
    check(CALL(69, int, int, handle *)(1, 0, &memory));
    check(CALL(49, handle, void *, size_t, const int64_t *, size_t, int, handle *)(
        memory, x, sizeof x, shape, 4, 1, &value));
    check(CALL(9, handle, handle, const char *const *, const handle *, size_t, const char *const *,
               size_t, handle *)(session, NULL, inputs, &value, 1, outputs, 2, made));
    for (int k = 0; k < 2; k++) {
        float *data;
        double sum = 0;
        check(CALL(51, handle, float **)(made[k], &data));
        for (int n = 0; n < sizes[k]; n++)
            sum += data[n];
        printf("%.4f\n", sum);
        ((void (*)(handle))api[96])(made[k]);
    }
    ((void (*)(handle))api[96])(value);
    ((void (*)(handle))api[95])(session);
    check(CALL(302, handle, const char *)(env, "superopt"));
    ((void (*)(handle))api[92])(env);
    return 0;
}
