/* SPDX-License-Identifier: BSD-3-Clause */
#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1

/* What is left of a file that is being read. */
struct reader {
	const uint8_t *at;
	size_t left;
	const char *why;
};

static bool refuse(struct reader *reader, const char *why)
{
	reader->why = why;
	return false;
}

static uint32_t little32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static bool read32(struct reader *reader, uint32_t *value)
{
	if (reader->left < 4)
		return refuse(reader, "the model's file ends too early");
	*value = little32(reader->at);
	reader->at += 4;
	reader->left -= 4;
	return true;
}

static float *read_floats(struct reader *reader, size_t count)
{
	float *floats;
	uint32_t bits;
	size_t i;

	/* Looked at before memory is taken: the sizes are the file's own words. */
	if (reader->left / 4 < count) {
		refuse(reader, "the model's file ends within weights or biases");
		return NULL;
	}
	floats = malloc(count * sizeof(*floats));
	if (!floats) {
		refuse(reader, "no memory for the model");
		return NULL;
	}
	for (i = 0; i < count; i++) {
		bits = little32(reader->at + 4 * i);
		memcpy(&floats[i], &bits, sizeof(bits));
		if (!isfinite(floats[i])) {
			refuse(reader, "a weight or bias is infinite or no number");
			free(floats);
			return NULL;
		}
	}
	reader->at += 4 * count;
	reader->left -= 4 * count;
	return floats;
}

static bool read_layer(struct reader *reader, struct dense_model *model, struct dense_layer *layer)
{
	uint32_t activation;

	if (!read32(reader, &layer->inputs) || !read32(reader, &layer->outputs) || !read32(reader, &activation))
		return false;
	if (!layer->inputs || layer->inputs > DENSE_WIDTH_MAX || !layer->outputs || layer->outputs > DENSE_WIDTH_MAX)
		return refuse(reader, "a layer has no inputs or outputs, or more than 4096");
	if (layer != model->layers && layer->inputs != layer[-1].outputs)
		return refuse(reader, "a layer has not as many inputs as the one before has outputs");
	if (activation != ACTIVATION_NONE && activation != ACTIVATION_RELU)
		return refuse(reader, "a layer's activation is neither 0 (none) nor 1 (relu)");
	layer->relu = activation == ACTIVATION_RELU;
	layer->weights = read_floats(reader, (size_t)layer->inputs * layer->outputs);
	if (!layer->weights)
		return false;
	layer->biases = read_floats(reader, layer->outputs);
	model->weight_bytes += 4 * ((uint64_t)layer->inputs + 1) * layer->outputs;
	return layer->biases != NULL;
}

static bool read_header(struct reader *reader, struct dense_model *model)
{
	uint32_t version, nb_layers;

	if (reader->left < 4 || memcmp(reader->at, DENSE_MAGIC, 4))
		return refuse(reader, "the file is no model: it does not begin with SWML");
	reader->at += 4;
	reader->left -= 4;
	if (!read32(reader, &version) || !read32(reader, &nb_layers))
		return false;
	if (version != DENSE_VERSION)
		return refuse(reader, "the model's version is not 1");
	if (!nb_layers || nb_layers > DENSE_LAYERS_MAX)
		return refuse(reader, "the model has no layers, or more than 64");
	/* Only now, since it also says what has to be freed. */
	model->nb_layers = nb_layers;
	return true;
}

static bool read_model(struct reader *reader, struct dense_model *model)
{
	uint32_t i;

	if (!read_header(reader, model))
		return false;
	for (i = 0; i < model->nb_layers; i++) {
		if (!read_layer(reader, model, &model->layers[i]))
			return false;
	}
	if (reader->left)
		return refuse(reader, "the model's file goes on after the last layer");
	model->inputs = model->layers[0].inputs;
	model->outputs = model->layers[model->nb_layers - 1].outputs;
	return true;
}

struct dense_model *dense_parse(const void *file, size_t size, const char **why)
{
	struct reader reader = { .at = file, .left = size };
	struct dense_model *model = calloc(1, sizeof(*model));

	if (!model) {
		*why = "no memory for the model";
		return NULL;
	}
	if (read_model(&reader, model))
		return model;
	*why = reader.why;
	dense_free(model);
	return NULL;
}

void dense_free(struct dense_model *model)
{
	uint32_t i;

	if (!model)
		return;
	for (i = 0; i < model->nb_layers; i++) {
		free(model->layers[i].weights);
		free(model->layers[i].biases);
	}
	free(model);
}

static void compute_layer(const struct dense_layer *layer, const float *from, float *to)
{
	const float *weight = layer->weights;
	uint32_t in, out;

	for (out = 0; out < layer->outputs; out++) {
		float sum = layer->biases[out];

		for (in = 0; in < layer->inputs; in++)
			sum += *weight++ * from[in];
		/* So written that what is no number stays none, and is seen. */
		to[out] = layer->relu && sum < 0 ? 0 : sum;
	}
}

void dense_compute(const struct dense_model *model, const void *input, void *output, struct dense_scratch *scratch)
{
	float *from = scratch->values[0];
	float *to = scratch->values[1];
	uint32_t i;

	memcpy(from, input, model->inputs * sizeof(*from));
	for (i = 0; i < model->nb_layers; i++) {
		float *done = from;

		compute_layer(&model->layers[i], from, to);
		from = to;
		to = done;
	}
	memcpy(output, from, model->outputs * sizeof(*from));
}
