/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Models of dense layers: read from a file in memory, and computed. README.md
 * says what the file holds. No DPDK here, so that it is tested on any machine.
 */
#ifndef DENSE_H
#define DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DENSE_MAGIC "SWML"
#define DENSE_VERSION 1
#define DENSE_LAYERS_MAX 64
#define DENSE_WIDTH_MAX 4096

struct dense_layer {
	uint32_t inputs;
	uint32_t outputs;
	bool relu;
	float *weights; /* those of the first output, then those of the next one */
	float *biases;
};

struct dense_model {
	uint32_t nb_layers;
	uint32_t inputs;
	uint32_t outputs;
	uint64_t weight_bytes; /* weights and biases */
	struct dense_layer layers[DENSE_LAYERS_MAX];
};

/* What is computed with; each thread has its own. */
struct dense_scratch {
	float values[2][DENSE_WIDTH_MAX];
};

/*
 * Reads a model, which dense_free frees. NULL is one that was refused, or for
 * which there is no memory; why then says the reason.
 */
struct dense_model *dense_parse(const void *file, size_t size, const char **why);
void dense_free(struct dense_model *model);

/* Computes a model's outputs. The buffers are float32 of this machine, and need no alignment. */
void dense_compute(const struct dense_model *model, const void *input, void *output, struct dense_scratch *scratch);

#endif
