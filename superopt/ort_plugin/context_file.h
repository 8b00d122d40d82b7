/* Contexts: the text that says which library and weights compute a partition. */
#ifndef SUPEROPT_CONTEXT_FILE_H
#define SUPEROPT_CONTEXT_FILE_H

#include "../report/export/model_interface.h"
#include "ort_api.h"

/* A library that is loaded and the handle of its weights. */
typedef struct {
    void *library; /* of dlopen */
    const superopt_interface *interface;
    void *model;
} opened_model;

/* Open the first library of a context whose instructions this processor has.

   A context begins with the line `superopt context 1`. Each line `library`, TAB, file, TAB, prefix
   of its symbols, TAB, file of weights names a variant. The line `end` ends it. A file is a path
   relative to `folder`, or `@OFFSET+SIZE`, a part of the bytes after `end`. */
OrtStatus *open_context(const char *context, size_t size, const char *folder, int is_pooled,
                        opened_model *out);

/* Read a file; the caller frees *out. */
OrtStatus *read_file(const char *path, char **out, size_t *size);

/* Return `folder/name`, which the caller frees. */
char *join_path(const char *folder, const char *name);

/* Return the folder of a path, which the caller frees; "." if it names none. */
char *folder_of(const char *path);

/* Write whether a path is relative and stays within its folder. */
bool stays_within(const char *path);

#endif
