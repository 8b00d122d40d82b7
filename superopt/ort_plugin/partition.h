/* A compiled part of a model: an EPContext node and the library that computes it. */
#ifndef SUPEROPT_PARTITION_H
#define SUPEROPT_PARTITION_H

#include "ort_api.h"

/* Write whether a node is an EPContext node of this provider. */
OrtStatus *is_context_node(const OrtNode *node, bool *found);

/* Open the library of a graph of one EPContext node. fused: the node that takes its place, whose
   inputs and outputs a call has. */
OrtStatus *open_partition(const provider *owner, const OrtGraph *graph, const OrtNode *node,
                          const OrtNode *fused, compiled_node **out);

#endif
