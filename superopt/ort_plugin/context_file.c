#define _GNU_SOURCE
#include "context_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEADER "superopt context 1\n"
#define NO_PROCESSOR 4 /* error code of exported models: an instruction set is missing */
#define CLOSE_ON_EXEC 1u /* MFD_CLOEXEC */
#define MAX_MESSAGE 1024

/* A context in memory, and where its files are. */
typedef struct {
    const char *blob; /* the bytes after `end` */
    size_t blob_size;
    const char *folder;
} context_source;

/* A file that can be opened by a path: a file of the system, or bytes that have a descriptor. */
typedef struct {
    char *path;
    int descriptor; /* -1 for a file of the system */
} named_file;

char *join_path(const char *folder, const char *name)
{
    char *out;
    return asprintf(&out, "%s/%s", folder, name) < 0 ? NULL : out;
}

char *folder_of(const char *path)
{
    const char *end = strrchr(path, '/');
    return end == NULL ? strdup(".") : end == path ? strdup("/") : strndup(path, (size_t)(end - path));
}

bool stays_within(const char *path)
{
    if (*path == '/' || *path == '\0')
        return false;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

OrtStatus *read_file(const char *path, char **out, size_t *size)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) != 0) {
        OrtStatus *status = fail(ORT_FAIL, "%s cannot be read: %s; export the model again, or copy all "
                                           "of its files", path, strerror(errno));
        if (file >= 0)
            close(file);
        return status;
    }
    *size = (size_t)about.st_size;
    *out = malloc(*size + 1);
    size_t done = 0;
    while (*out != NULL && done < *size) {
        ssize_t count = read(file, *out + done, *size - done);
        if (count <= 0)
            break;
        done += (size_t)count;
    }
    close(file);
    if (*out == NULL || done < *size) {
        free(*out);
        *out = NULL;
        return fail(ORT_FAIL, "%s cannot be read: %zu of %zu bytes; export the model again", path, done,
                    *size);
    }
    (*out)[*size] = '\0';
    return NULL;
}

static void release_file(named_file *file)
{
    free(file->path);
    if (file->descriptor >= 0)
        close(file->descriptor);
}

/* Give bytes a path: dlopen and mmap take files. */
static OrtStatus *name_bytes(const char *bytes, size_t size, named_file *out)
{
    out->descriptor = (int)syscall(SYS_memfd_create, "superopt", CLOSE_ON_EXEC); /* glibc 2.27 */
    size_t done = 0;
    while (out->descriptor >= 0 && done < size) {
        ssize_t count = write(out->descriptor, bytes + done, size - done);
        if (count <= 0)
            break;
        done += (size_t)count;
    }
    if (done < size || out->descriptor < 0
        || asprintf(&out->path, "/proc/self/fd/%d", out->descriptor) < 0)
        return fail(ORT_FAIL, "an embedded context cannot be opened: %s; export it with files beside "
                              "the model", strerror(errno));
    return NULL;
}

static OrtStatus *find_named(const context_source *from, const char *name, named_file *out)
{
    *out = (named_file){NULL, -1};
    if (*name != '@') {
        if (!stays_within(name))
            return fail(ORT_INVALID_ARGUMENT, "a context names the file %s: paths must be relative and "
                                              "stay in the model's folder; export the model again",
                        name);
        out->path = join_path(from->folder, name);
        return out->path == NULL ? fail(ORT_FAIL, "out of memory") : NULL;
    }
    size_t offset, size;
    if (sscanf(name, "@%zu+%zu", &offset, &size) != 2 || offset > from->blob_size
        || size > from->blob_size - offset)
        return fail(ORT_INVALID_ARGUMENT, "a context names the bytes %s, and has %zu: it is damaged; "
                                          "export the model again", name, from->blob_size);
    return name_bytes(from->blob + offset, size, out);
}

/* Open a variant. *fits: whether the processor has its instructions; *needs: else its message. */
static OrtStatus *open_variant(const char *library, const char *prefix, const char *weights,
                               int is_pooled, opened_model *out, bool *fits, char needs[MAX_MESSAGE])
{
    char symbol[256];
    int error = 0;
    *fits = true;
    out->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (out->library == NULL)
        return fail(ORT_FAIL, "%s cannot be loaded: %s; export the model again", library, dlerror());
    snprintf(symbol, sizeof symbol, "%s_interface", prefix);
    out->interface = dlsym(out->library, symbol);
    OrtStatus *status = NULL;
    if (out->interface == NULL)
        status = fail(ORT_FAIL, "%s has no symbol %s: it was written by an older superopt; export the "
                                "model again", library, symbol);
    else if (out->interface->version != SUPEROPT_INTERFACE_VERSION)
        status = fail(ORT_FAIL, "%s has interface %d, and this provider knows %d; export the model again "
                                "with the superopt that the provider is from", library,
                      out->interface->version, SUPEROPT_INTERFACE_VERSION);
    else if ((out->model = out->interface->open(weights, is_pooled, &error)) != NULL)
        return NULL;
    if (status == NULL) {
        const char *text = out->interface->error(error);
        *fits = error != NO_PROCESSOR;
        snprintf(needs, MAX_MESSAGE, "%s", text);
        if (*fits)
            status = fail(ORT_FAIL, "%s cannot be opened with %s: %s; copy all files of the export",
                          library, weights, text);
    }
    dlclose(out->library);
    *out = (opened_model){NULL, NULL, NULL};
    return status;
}

/* Split `library TAB file TAB prefix TAB weights` in place; return whether it is such a line. */
static bool split_variant(char *line, char *parts[3])
{
    if (strncmp(line, "library\t", 8) != 0)
        return false;
    char *at = line + 7;
    for (int n = 0; n < 3; n++) {
        if (at == NULL || *at != '\t')
            return false;
        *at++ = '\0';
        parts[n] = at;
        at = strchr(at, '\t');
    }
    return at == NULL;
}

static OrtStatus *open_line(const context_source *from, char *line, int is_pooled, opened_model *out,
                            bool *fits, char needs[MAX_MESSAGE])
{
    char *parts[3];
    named_file library, weights = {NULL, -1};
    if (!split_variant(line, parts))
        return fail(ORT_INVALID_ARGUMENT, "a context has the line \"%s\": it is damaged, or of a newer "
                                          "superopt; export the model again", line);
    OrtStatus *status = find_named(from, parts[0], &library);
    if (status == NULL)
        status = find_named(from, parts[2], &weights);
    if (status == NULL)
        status = open_variant(library.path, parts[1], weights.path, is_pooled, out, fits, needs);
    release_file(&library);
    release_file(&weights);
    return status;
}

OrtStatus *open_context(const char *context, size_t size, const char *folder, int is_pooled,
                        opened_model *out)
{
    *out = (opened_model){NULL, NULL, NULL};
    const char *end = memmem(context, size, "\nend\n", 5);
    if (size < sizeof HEADER || strncmp(context, HEADER, sizeof HEADER - 1) != 0 || end == NULL)
        return fail(ORT_INVALID_ARGUMENT, "a context does not begin with \"superopt context 1\": it is "
                                          "damaged, or of another version; export the model again");
    const char *blob = end + 5;
    context_source from = {blob, size - (size_t)(blob - context), folder};
    const char *first = context + sizeof HEADER - 1;
    char needs[MAX_MESSAGE] = "it has no library";
    char *text = first < end ? strndup(first, (size_t)(end - first)) : strdup("");
    char *place = NULL;
    OrtStatus *status = text == NULL ? fail(ORT_FAIL, "out of memory") : NULL;
    for (char *line = text ? strtok_r(text, "\n", &place) : NULL; status == NULL && line != NULL;
         line = strtok_r(NULL, "\n", &place)) {
        bool fits = false;
        status = open_line(&from, line, is_pooled, out, &fits, needs);
        if (status == NULL && fits)
            break;
    }
    free(text);
    if (status == NULL && out->model == NULL)
        return fail(ORT_EP_FAIL, "no code of this model runs on this processor: %s; export it with "
                                 "--cpu x86-64-v3, or for several processors", needs);
    return status;
}
