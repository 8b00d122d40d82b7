/* Run an exported library of any system: run_library LIBRARY PREFIX WEIGHTS SHAPE...

   Reads in0, in1, ..., and writes out0, out1, ... of a second run and their shapes as JSON. Prints 0,
   or an error. SHAPE: of each input, as 1x3x8x8, or - for a scalar. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define OPEN(path) (void *)LoadLibraryA(path)
#define FIND(library, name) (void *)GetProcAddress((HMODULE)(library), name)
#else
#include <dlfcn.h>
#define OPEN(path) dlopen(path, RTLD_NOW)
#define FIND(library, name) dlsym(library, name)
#endif
#include "model_interface.h"

enum { MOST = 64 };

static void *read_file(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (file == NULL)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *out = malloc((size_t)size + 1);
    if (fread(out, 1, (size_t)size, file) != (size_t)size)
        abort();
    fclose(file);
    return out;
}

static int failed(const superopt_interface *about, void *model, int error)
{
    char text[512] = "";
    if (model != NULL)
        about->message(model, text, sizeof text);
    printf("%d %s; %s\n", error, about->error(error), text);
    return 1;
}

int main(int count, char **words)
{
    char name[256];
    static int64_t dims[MOST][8], shapes_out[MOST][8], sizes[MOST];
    const int64_t *shapes[MOST];
    void *inputs[MOST], *outputs[MOST];
    size_t bytes[MOST];
    void *library = OPEN(words[1]);
    if (library == NULL)
        return printf("no library %s\n", words[1]), 1;
    snprintf(name, sizeof name, "%s_interface", words[2]);
    const superopt_interface *about = FIND(library, name);
    if (about == NULL)
        return printf("no %s\n", name), 1;
    int error = 0;
    void *first = about->open(words[3], 0, &error);
    if (first == NULL)
        return failed(about, NULL, error);
    void *model = about->clone(first, &error);
    if (model == NULL)
        return failed(about, NULL, error);
    about->close(first);
    for (int n = 0; n < about->input_count && n + 4 < count; n++) {
        char *text = words[4 + n];
        for (int axis = 0; axis < about->inputs[n].rank; axis++)
            dims[n][axis] = strtoll(text, &text, 10), text += *text == 'x';
        shapes[n] = dims[n];
        snprintf(name, sizeof name, "in%d", n);
        inputs[n] = read_file(name);
    }
    if ((error = about->infer_sizes(model, shapes, sizes)) != 0)
        return failed(about, model, error);
    for (int n = 0; n < about->output_count; n++) {
        if ((error = about->output_shape(n, sizes, shapes_out[n], &bytes[n])) != 0)
            return failed(about, model, error);
        outputs[n] = malloc(bytes[n] + 1);
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        for (int n = 0; n < about->output_count; n++)
            memset(outputs[n], 0xFF, bytes[n]);
        error = about->run(model, (const void *const *)inputs, outputs, sizes, NULL, NULL);
        if (error != 0)
            return failed(about, model, error);
    }
    FILE *about_shapes = fopen("shapes", "w");
    for (int n = 0; n < about->output_count; n++) {
        snprintf(name, sizeof name, "out%d", n);
        FILE *file = fopen(name, "wb");
        fwrite(outputs[n], 1, bytes[n], file);
        fclose(file);
        fputs(n == 0 ? "[[" : ", [", about_shapes);
        for (int axis = 0; axis < about->outputs[n].rank; axis++)
            fprintf(about_shapes, axis == 0 ? "%d" : ", %d", (int)shapes_out[n][axis]);
        fputs("]", about_shapes);
    }
    fputs("]", about_shapes);
    fclose(about_shapes);
    about->close(model);
    puts("0");
    return 0;
}
