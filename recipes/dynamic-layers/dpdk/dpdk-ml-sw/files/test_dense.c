/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tests of models, without DPDK. Prints one line for each, as a ptest does,
 * and ends with 1 if any has failed.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"

static const char *test;
static bool test_failed;
static bool any_failed;

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s: ", test);
	vprintf(format, args);
	printf("\n");
	va_end(args);
	test_failed = true;
}

/* A model's file under construction. */
struct file {
	uint8_t bytes[512];
	size_t size;
};

static void add32(struct file *file, uint32_t value)
{
	int i;

	for (i = 0; i < 4; i++)
		file->bytes[file->size++] = (uint8_t)(value >> 8 * i);
}

static void add_floats(struct file *file, size_t count, const float *floats)
{
	uint32_t bits;
	size_t i;

	for (i = 0; i < count; i++) {
		memcpy(&bits, &floats[i], sizeof(bits));
		add32(file, bits);
	}
}

/* Two inputs, three with ReLU between, one output without. */
static struct file small(void)
{
	struct file file = { .bytes = "SWML", .size = 4 };

	add32(&file, 1);
	add32(&file, 2);
	add32(&file, 2);
	add32(&file, 3);
	add32(&file, 1);
	add_floats(&file, 6, (const float[]){ 1, 2, -1, 0.5f, 3, -4 });
	add_floats(&file, 3, (const float[]){ 0.5f, -1, 2 });
	add32(&file, 3);
	add32(&file, 1);
	add32(&file, 0);
	add_floats(&file, 3, (const float[]){ -2, 1, 0.25f });
	add_floats(&file, 1, (const float[]){ 1 });
	return file;
}

/* Each file has memory of just its size, so that a sanitizer sees every step beyond it. */
static struct dense_model *parse(const struct file *file, size_t size, const char **why)
{
	uint8_t *exact = malloc(size ? size : 1);
	struct dense_model *model;

	memcpy(exact, file->bytes, size);
	*why = "";
	model = dense_parse(exact, size, why);
	free(exact);
	return model;
}

static void test_compute(void)
{
	/* By hand: (1,1) gives 3.5, 0 for -1.5, 1, and -2*3.5 + 0.25*1 + 1. */
	const struct { float in[2], want; } cases[] = {
		{ { 1, 1 }, -5.75f },
		{ { 0, 0 }, 0.5f },
		{ { -4, 0 }, 4 },
		{ { 0, -2 }, 3.5f },
	};
	static struct dense_scratch scratch;
	struct file file = small();
	const char *why;
	struct dense_model *model = parse(&file, file.size, &why);
	size_t i;
	float out;

	if (!model) {
		fail("refused: %s", why);
		return;
	}
	if (model->inputs != 2 || model->outputs != 1 || model->weight_bytes != 13 * 4)
		fail("%u inputs, %u outputs, %u bytes; want 2, 1, 52", model->inputs, model->outputs,
		     (unsigned int)model->weight_bytes);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		dense_compute(model, cases[i].in, &out, &scratch);
		if (out != cases[i].want)
			fail("(%g, %g) gives %g; want %g", cases[i].in[0], cases[i].in[1], out, cases[i].want);
	}
	dense_free(model);
}

static void test_refused(void)
{
	/* Where the file is changed, to what, and a word of the reason. */
	const struct {
		size_t at;
		uint32_t to;
		const char *why;
	} cases[] = {
		{ 0, 0x4c4d5753 ^ 1, "no model" },
		{ 4, 2, "version" },
		{ 8, 0, "no layers" },
		{ 8, 65, "no layers" },
		{ 8, 0xffffffff, "no layers" },
		{ 8, 1, "goes on" },
		{ 8, 3, "too early" },
		{ 12, 0, "no inputs" },
		{ 12, 4097, "no inputs" },
		{ 16, 0xffffffff, "no inputs" },
		{ 16, 4096, "within weights" },
		{ 20, 2, "activation" },
		{ 24, 0x7f800000, "infinite" },
		{ 24, 0x7fc00000, "infinite" },
		{ 60, 4, "as many inputs" },
	};
	size_t i, byte;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct file file = small();
		struct dense_model *model;
		const char *why;

		for (byte = 0; byte < 4; byte++)
			file.bytes[cases[i].at + byte] = (uint8_t)(cases[i].to >> 8 * byte);
		model = parse(&file, file.size, &why);
		if (model || !strstr(why, cases[i].why))
			fail("%#x at %d: \"%s\"; want one with \"%s\"", cases[i].to, (int)cases[i].at, why,
			     cases[i].why);
		dense_free(model);
	}
}

static void test_cut(void)
{
	struct file file = small();
	size_t size;

	for (size = 0; size <= file.size + 4; size++) {
		const char *why;
		struct dense_model *model = parse(&file, size, &why);

		if ((model != NULL) != (size == file.size))
			fail("%d of %d bytes: taken %d (%s)", (int)size, (int)file.size, model != NULL, why);
		dense_free(model);
	}
}

static void test_damaged(void)
{
	static struct dense_scratch scratch;
	unsigned int seed = 7;
	int round;

	for (round = 0; round < 20000; round++) {
		struct file file = small();
		float in[DENSE_WIDTH_MAX] = { 1, 2 }, out[DENSE_WIDTH_MAX];
		struct dense_model *model;
		const char *why;
		int i;

		for (i = 0; i <= round % 3; i++)
			file.bytes[(size_t)rand_r(&seed) % file.size] = (uint8_t)rand_r(&seed);
		model = parse(&file, file.size, &why);
		if (!model != (why[0] != 0))
			fail("round %d: a model and a reason, or neither", round);
		if (model)
			dense_compute(model, in, out, &scratch);
		dense_free(model);
	}
}

static void run(const char *name, void (*function)(void))
{
	test = name;
	test_failed = false;
	function();
	printf("%s: %s\n", test_failed ? "FAIL" : "PASS", name);
	any_failed = any_failed || test_failed;
}

int main(void)
{
	run("compute", test_compute);
	run("refused", test_refused);
	run("cut", test_cut);
	run("damaged", test_damaged);
	return any_failed;
}
