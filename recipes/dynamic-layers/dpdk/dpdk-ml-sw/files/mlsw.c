/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver: what mldev asks for, and models that are computed on enqueue. */
#include <bus_vdev_driver.h>
#include <errno.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mldev_pmd.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <string.h>

#include "dense.h"

#define MODELS_MAX 64
#define QUEUE_PAIRS_MAX 16
#define DESCRIPTORS_MAX 4096
/* A model here has one input and one output; dpdk-test-mldev wants a device to say 32. */
#define IO_MAX 32
#define ALIGN 64

RTE_LOG_REGISTER(mlsw_log, pmd.ml.sw, NOTICE)
#define MLSW_LOG(level, ...) rte_log(RTE_LOG_##level, mlsw_log, "ml_sw: " __VA_ARGS__)

struct mlsw_model {
	struct dense_model *dense;
	/* Set and cleared by one thread, looked at by those that enqueue. */
	bool started;
	uint32_t input_shape[2];
	uint32_t output_shape[2];
	struct rte_ml_io_info input;
	struct rte_ml_io_info output;
};

struct mlsw_queue_pair {
	struct rte_ring *done;
	rte_ml_dev_stop_flush_t flush;
	struct rte_ml_dev_stats stats;
	struct dense_scratch scratch;
};

/* Why an operation failed, in its impl_opaque. */
enum mlsw_error {
	MLSW_OK,
	MLSW_NO_MODEL,
	MLSW_NOT_STARTED,
	MLSW_BATCHES,
	MLSW_INPUT,
	MLSW_OUTPUT,
};

static const char *const error_texts[] = {
	[MLSW_OK] = "no error",
	[MLSW_NO_MODEL] = "no model with this id",
	[MLSW_NOT_STARTED] = "the model is not started",
	[MLSW_BATCHES] = "an operation has one batch",
	[MLSW_INPUT] = "the input is missing, in several segments, or too short",
	[MLSW_OUTPUT] = "the output is missing, in several segments, or too short",
};

static struct mlsw_model *find_model(struct rte_ml_dev *dev, uint16_t id)
{
	return id < dev->data->nb_models ? dev->data->models[id] : NULL;
}

static void free_model(struct rte_ml_dev *dev, uint16_t id)
{
	struct mlsw_model *model = find_model(dev, id);

	if (!model)
		return;
	dense_free(model->dense);
	rte_free(model);
	dev->data->models[id] = NULL;
}

static void free_queue_pair(struct rte_ml_dev *dev, uint16_t id)
{
	struct mlsw_queue_pair *pair = dev->data->queue_pairs[id];

	if (!pair)
		return;
	rte_ring_free(pair->done);
	rte_free(pair);
	dev->data->queue_pairs[id] = NULL;
}

static void unconfigure(struct rte_ml_dev *dev)
{
	struct rte_ml_dev_data *data = dev->data;
	uint16_t i;

	for (i = 0; i < data->nb_models; i++)
		free_model(dev, i);
	for (i = 0; i < data->nb_queue_pairs; i++)
		free_queue_pair(dev, i);
	rte_free(data->models);
	rte_free(data->queue_pairs);
	data->models = NULL;
	data->queue_pairs = NULL;
	data->nb_models = 0;
	data->nb_queue_pairs = 0;
}

static int dev_info_get(struct rte_ml_dev *dev __rte_unused, struct rte_ml_dev_info *info)
{
	info->driver_name = "ml_sw";
	info->max_models = MODELS_MAX;
	info->max_queue_pairs = QUEUE_PAIRS_MAX;
	info->max_desc = DESCRIPTORS_MAX;
	info->max_io = IO_MAX;
	info->max_segments = 1;
	info->align_size = ALIGN;
	return 0;
}

/* A device that is configured again begins anew: its models and queue pairs are gone. */
static int dev_configure(struct rte_ml_dev *dev, const struct rte_ml_dev_config *config)
{
	struct rte_ml_dev_data *data = dev->data;

	if (!config->nb_models || config->nb_models > MODELS_MAX || !config->nb_queue_pairs) {
		MLSW_LOG(ERR, "cannot configure %u models and %u queue pairs\n", config->nb_models,
			 config->nb_queue_pairs);
		return -EINVAL;
	}
	unconfigure(dev);
	data->models = rte_zmalloc("ml_sw_models", config->nb_models * sizeof(void *), 0);
	data->queue_pairs = rte_zmalloc("ml_sw_pairs", config->nb_queue_pairs * sizeof(void *), 0);
	if (!data->models || !data->queue_pairs) {
		unconfigure(dev);
		return -ENOMEM;
	}
	data->nb_models = config->nb_models;
	data->nb_queue_pairs = config->nb_queue_pairs;
	return 0;
}

/* Queue pairs may be missing: models are loaded and started without any. */
static int dev_start(struct rte_ml_dev *dev __rte_unused)
{
	return 0;
}

/* Operations that nobody has dequeued go back to the application, if it wants them. */
static int dev_stop(struct rte_ml_dev *dev)
{
	struct mlsw_queue_pair *pair;
	void *op;
	uint16_t i;

	for (i = 0; i < dev->data->nb_queue_pairs; i++) {
		pair = dev->data->queue_pairs[i];
		while (pair && !rte_ring_dequeue(pair->done, &op)) {
			if (pair->flush)
				pair->flush(dev->data->dev_id, i, op);
		}
	}
	return 0;
}

static int dev_close(struct rte_ml_dev *dev)
{
	unconfigure(dev);
	return rte_ml_dev_pmd_destroy(dev);
}

static int queue_pair_release(struct rte_ml_dev *dev, uint16_t id)
{
	if (id >= dev->data->nb_queue_pairs)
		return -EINVAL;
	free_queue_pair(dev, id);
	return 0;
}

static int queue_pair_setup(struct rte_ml_dev *dev, uint16_t id, const struct rte_ml_dev_qp_conf *conf, int socket)
{
	struct mlsw_queue_pair *pair;
	char name[RTE_RING_NAMESIZE];

	if (!conf->nb_desc || conf->nb_desc > DESCRIPTORS_MAX) {
		MLSW_LOG(ERR, "a queue pair has 1 to %d descriptors, not %u\n", DESCRIPTORS_MAX, conf->nb_desc);
		return -EINVAL;
	}
	free_queue_pair(dev, id);
	pair = rte_zmalloc_socket("ml_sw_pair", sizeof(*pair), RTE_CACHE_LINE_SIZE, socket);
	if (!pair)
		return -ENOMEM;
	snprintf(name, sizeof(name), "ml_sw_%d_%u", dev->data->dev_id, id);
	/* One thread may enqueue while another one dequeues. */
	pair->done = rte_ring_create(name, conf->nb_desc, socket, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
	if (!pair->done) {
		rte_free(pair);
		return -ENOMEM;
	}
	pair->flush = conf->cb;
	dev->data->queue_pairs[id] = pair;
	return 0;
}

/* Each counter is one thread's, and read as a whole by others. */
static void count(uint64_t *counter, uint64_t more)
{
	__atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

static int dev_stats_get(struct rte_ml_dev *dev, struct rte_ml_dev_stats *stats)
{
	const struct mlsw_queue_pair *pair;
	uint16_t i;

	for (i = 0; i < dev->data->nb_queue_pairs; i++) {
		pair = dev->data->queue_pairs[i];
		if (!pair)
			continue;
		stats->enqueued_count += __atomic_load_n(&pair->stats.enqueued_count, __ATOMIC_RELAXED);
		stats->dequeued_count += __atomic_load_n(&pair->stats.dequeued_count, __ATOMIC_RELAXED);
		stats->enqueue_err_count += __atomic_load_n(&pair->stats.enqueue_err_count, __ATOMIC_RELAXED);
		stats->dequeue_err_count += __atomic_load_n(&pair->stats.dequeue_err_count, __ATOMIC_RELAXED);
	}
	return 0;
}

static void dev_stats_reset(struct rte_ml_dev *dev)
{
	struct mlsw_queue_pair *pair;
	uint16_t i;

	for (i = 0; i < dev->data->nb_queue_pairs; i++) {
		pair = dev->data->queue_pairs[i];
		if (pair)
			memset(&pair->stats, 0, sizeof(pair->stats));
	}
}

static void describe(struct rte_ml_io_info *info, const char *name, uint32_t *shape, uint32_t width)
{
	shape[0] = 1;
	shape[1] = width;
	snprintf(info->name, sizeof(info->name), "%s", name);
	info->nb_dims = 2;
	info->shape = shape;
	info->type = RTE_ML_IO_TYPE_FP32;
	info->nb_elements = width;
	info->size = (uint64_t)width * sizeof(float);
#if RTE_VERSION >= RTE_VERSION_NUM(24, 3, 0, 0)
	info->scale = 1;
#endif
}

static int free_id(struct rte_ml_dev *dev)
{
	int id;

	for (id = 0; id < dev->data->nb_models; id++) {
		if (!dev->data->models[id])
			return id;
	}
	return -ENOSPC;
}

static int model_load(struct rte_ml_dev *dev, struct rte_ml_model_params *params, uint16_t *id)
{
	int slot = free_id(dev);
	struct mlsw_model *model;
	const char *why;

	if (slot < 0) {
		MLSW_LOG(ERR, "cannot load a model: the device was configured for %u\n", dev->data->nb_models);
		return slot;
	}
	model = rte_zmalloc("ml_sw_model", sizeof(*model), 0);
	if (!model)
		return -ENOMEM;
	model->dense = dense_parse(params->addr, params->addr ? params->size : 0, &why);
	if (!model->dense) {
		MLSW_LOG(ERR, "cannot load a model: %s\n", why);
		rte_free(model);
		return -EINVAL;
	}
	describe(&model->input, "input", model->input_shape, model->dense->inputs);
	describe(&model->output, "output", model->output_shape, model->dense->outputs);
	dev->data->models[slot] = model;
	*id = (uint16_t)slot;
	return 0;
}

static int model_unload(struct rte_ml_dev *dev, uint16_t id)
{
	struct mlsw_model *model = find_model(dev, id);

	if (!model)
		return -EINVAL;
	if (model->started) {
		MLSW_LOG(ERR, "cannot unload model %u: it is started\n", id);
		return -EBUSY;
	}
	free_model(dev, id);
	return 0;
}

static int set_started(struct rte_ml_dev *dev, uint16_t id, bool started)
{
	struct mlsw_model *model = find_model(dev, id);

	if (!model)
		return -EINVAL;
	if (model->started == started)
		return -EALREADY;
	__atomic_store_n(&model->started, started, __ATOMIC_RELEASE);
	return 0;
}

static int model_start(struct rte_ml_dev *dev, uint16_t id)
{
	return set_started(dev, id, true);
}

static int model_stop(struct rte_ml_dev *dev, uint16_t id)
{
	return set_started(dev, id, false);
}

static int model_info_get(struct rte_ml_dev *dev, uint16_t id, struct rte_ml_model_info *info)
{
	struct mlsw_model *model = find_model(dev, id);

	if (!model)
		return -EINVAL;
	memset(info, 0, sizeof(*info));
	snprintf(info->name, sizeof(info->name), "dense, in software");
	snprintf(info->version, sizeof(info->version), "%d", DENSE_VERSION);
	info->model_id = id;
	info->device_id = (uint16_t)dev->data->dev_id;
	info->io_layout = RTE_ML_IO_LAYOUT_PACKED;
	info->min_batches = 1;
	info->max_batches = 1;
	info->nb_inputs = 1;
	info->input_info = &model->input;
	info->nb_outputs = 1;
	info->output_info = &model->output;
	info->wb_size = model->dense->weight_bytes;
	return 0;
}

static bool holds(struct rte_ml_buff_seg **segments, uint64_t size)
{
	const struct rte_ml_buff_seg *segment = segments ? segments[0] : NULL;

	return segment && segment->addr && !segment->next && segment->length >= size;
}

/* Models take and give float32, so both directions are a copy. */
static int copy(struct rte_ml_buff_seg **from, struct rte_ml_buff_seg **to, uint64_t size)
{
	if (!holds(from, size) || !holds(to, size))
		return -EINVAL;
	memcpy(to[0]->addr, from[0]->addr, size);
	return 0;
}

static int io_quantize(struct rte_ml_dev *dev, uint16_t id, struct rte_ml_buff_seg **from, struct rte_ml_buff_seg **to)
{
	struct mlsw_model *model = find_model(dev, id);

	return model ? copy(from, to, model->input.size) : -EINVAL;
}

static int io_dequantize(struct rte_ml_dev *dev, uint16_t id, struct rte_ml_buff_seg **from,
			 struct rte_ml_buff_seg **to)
{
	struct mlsw_model *model = find_model(dev, id);

	return model ? copy(from, to, model->output.size) : -EINVAL;
}

static enum mlsw_error infer(struct rte_ml_dev *dev, struct mlsw_queue_pair *pair, struct rte_ml_op *op)
{
	struct mlsw_model *model = find_model(dev, op->model_id);

	if (!model)
		return MLSW_NO_MODEL;
	if (!__atomic_load_n(&model->started, __ATOMIC_ACQUIRE))
		return MLSW_NOT_STARTED;
	if (op->nb_batches != 1)
		return MLSW_BATCHES;
	if (!holds(op->input, model->input.size))
		return MLSW_INPUT;
	if (!holds(op->output, model->output.size))
		return MLSW_OUTPUT;
	dense_compute(model->dense, op->input[0]->addr, op->output[0]->addr, &pair->scratch);
	return MLSW_OK;
}

static uint16_t enqueue_burst(struct rte_ml_dev *dev, uint16_t id, struct rte_ml_op **ops, uint16_t nb_ops)
{
	struct mlsw_queue_pair *pair = id < dev->data->nb_queue_pairs ? dev->data->queue_pairs[id] : NULL;
	enum mlsw_error error;
	uint16_t i;

	if (!pair || !dev->data->dev_started)
		return 0;
	/* Nothing is computed that could not be handed back. */
	for (i = 0; i < nb_ops && !rte_ring_full(pair->done); i++) {
		error = infer(dev, pair, ops[i]);
		ops[i]->impl_opaque = error;
		ops[i]->status = error ? RTE_ML_OP_STATUS_ERROR : RTE_ML_OP_STATUS_SUCCESS;
		if (rte_ring_enqueue(pair->done, ops[i]))
			break;
	}
	count(&pair->stats.enqueued_count, i);
	return i;
}

static uint16_t dequeue_burst(struct rte_ml_dev *dev, uint16_t id, struct rte_ml_op **ops, uint16_t nb_ops)
{
	struct mlsw_queue_pair *pair = id < dev->data->nb_queue_pairs ? dev->data->queue_pairs[id] : NULL;
	uint16_t got, i;

	if (!pair)
		return 0;
	got = (uint16_t)rte_ring_dequeue_burst(pair->done, (void **)ops, nb_ops, NULL);
	for (i = 0; i < got; i++) {
		if (ops[i]->status == RTE_ML_OP_STATUS_ERROR)
			count(&pair->stats.dequeue_err_count, 1);
	}
	count(&pair->stats.dequeued_count, got);
	return got;
}

static int op_error_get(struct rte_ml_dev *dev __rte_unused, struct rte_ml_op *op, struct rte_ml_op_error *error)
{
	uint64_t code = op->impl_opaque;

	if (code >= RTE_DIM(error_texts))
		return -EINVAL;
	snprintf(error->message, sizeof(error->message), "%s", error_texts[code]);
	error->errcode = code;
	return 0;
}

static struct rte_ml_dev_ops dev_ops = {
	.dev_info_get = dev_info_get,
	.dev_configure = dev_configure,
	.dev_close = dev_close,
	.dev_start = dev_start,
	.dev_stop = dev_stop,
	.dev_queue_pair_setup = queue_pair_setup,
	.dev_queue_pair_release = queue_pair_release,
	.dev_stats_get = dev_stats_get,
	.dev_stats_reset = dev_stats_reset,
	.model_load = model_load,
	.model_unload = model_unload,
	.model_start = model_start,
	.model_stop = model_stop,
	.model_info_get = model_info_get,
	.io_quantize = io_quantize,
	.io_dequantize = io_dequantize,
};

static int probe(struct rte_vdev_device *vdev)
{
	struct rte_ml_dev_pmd_init_params params = {
		.socket_id = (uint8_t)rte_socket_id(),
		.private_data_size = 1,
	};
	const char *arguments = rte_vdev_device_args(vdev);
	struct rte_ml_dev *dev;

	if (rte_eal_process_type() != RTE_PROC_PRIMARY)
		return -ENOTSUP;
	if (arguments && arguments[0]) {
		MLSW_LOG(ERR, "takes no arguments\n");
		return -EINVAL;
	}
	dev = rte_ml_dev_pmd_create(rte_vdev_device_name(vdev), &vdev->device, &params);
	if (!dev)
		return -ENODEV;
	dev->dev_ops = &dev_ops;
	dev->enqueue_burst = enqueue_burst;
	dev->dequeue_burst = dequeue_burst;
	dev->op_error_get = op_error_get;
	MLSW_LOG(NOTICE, "device %d computes in software, not in hardware\n", dev->data->dev_id);
	return 0;
}

static int remove_device(struct rte_vdev_device *vdev)
{
	struct rte_ml_dev *dev = rte_ml_dev_pmd_get_named_dev(rte_vdev_device_name(vdev));

	return dev ? dev_close(dev) : 0;
}

static struct rte_vdev_driver driver = {
	.probe = probe,
	.remove = remove_device,
};

RTE_PMD_REGISTER_VDEV(ml_sw, driver);
