/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writes two models, an input for each and the output that it must give, for
 * dpdk-test-mldev. The outputs are computed here in double precision, and with
 * nothing of the driver: a mistake there shows as a difference. A driver that
 * answers the second input as the first one, or by the first model, shows too.
 */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX 64

static const uint32_t widths[] = { 64, 48, 32, 10 };
#define NB_LAYERS (sizeof(widths) / sizeof(widths[0]) - 1)

/* Small numbers that are the same on every machine, between -1 and 1. */
static float next_number(void)
{
	static uint32_t state = 1;

	state = state * 1664525 + 1013904223;
	return (float)((int32_t)(state >> 16) - 32768) / 32768.0f;
}

static void write32(FILE *out, uint32_t value)
{
	int i;

	for (i = 0; i < 4; i++)
		putc((int)(value >> 8 * i & 0xff), out);
}

static float write_float(FILE *out, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	write32(out, bits);
	return value;
}

static void write_layer(FILE *out, uint32_t inputs, uint32_t outputs, int relu, double *values)
{
	double sums[WIDTH_MAX] = { 0 };
	uint32_t in, to;
	float number;

	write32(out, inputs);
	write32(out, outputs);
	write32(out, (uint32_t)relu);
	for (to = 0; to < outputs; to++) {
		for (in = 0; in < inputs; in++) {
			number = write_float(out, next_number());
			sums[to] += (double)number * values[in];
		}
	}
	for (to = 0; to < outputs; to++) {
		number = write_float(out, next_number());
		sums[to] += (double)number;
		values[to] = relu && sums[to] < 0 ? 0 : sums[to];
	}
}

static void write_model(FILE *out, double *values)
{
	size_t i;

	fputs("SWML", out);
	write32(out, 1);
	write32(out, NB_LAYERS);
	for (i = 0; i < NB_LAYERS; i++)
		write_layer(out, widths[i], widths[i + 1], i + 1 < NB_LAYERS, values);
}

static FILE *create(const char *folder, const char *name)
{
	char path[PATH_MAX];
	FILE *out;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path)) {
		fprintf(stderr, "the folder's name is too long\n");
		return NULL;
	}
	out = fopen(path, "wb");
	if (!out)
		fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
	return out;
}

static int finish(FILE *out)
{
	int failed = ferror(out);

	if (fclose(out) || failed) {
		fprintf(stderr, "cannot write all of a file: %s\n", strerror(errno));
		return 1;
	}
	return 0;
}

/* Writes a model, an input, and what the model must answer. */
static int write_example(const char *folder, const char *model, const char *input, const char *reference)
{
	double values[WIDTH_MAX];
	int failed;
	uint32_t at;
	FILE *out = create(folder, input);

	if (!out)
		return 1;
	for (at = 0; at < widths[0]; at++)
		values[at] = (double)write_float(out, next_number());
	failed = finish(out);
	out = create(folder, model);
	if (!out)
		return 1;
	write_model(out, values);
	failed |= finish(out);
	out = create(folder, reference);
	if (!out)
		return 1;
	for (at = 0; at < widths[NB_LAYERS]; at++)
		write_float(out, (float)values[at]);
	return failed | finish(out);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s FOLDER: writes model.bin, input.bin and reference.bin there, and the same again with other- before their names\n", argv[0]);
		return 2;
	}
	return write_example(argv[1], "model.bin", "input.bin", "reference.bin") |
	       write_example(argv[1], "other-model.bin", "other-input.bin", "other-reference.bin");
}
