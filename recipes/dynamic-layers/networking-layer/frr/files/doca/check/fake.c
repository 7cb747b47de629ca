/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Refused as by DOCA 3.3: the kernel as the target of a root pipe, a field with
 * a width of 0, more entries than a pipe was made for, a port of a representor
 * before the device's, a pipe before its port.
 */
#include "fake.h"

#include <arpa/inet.h>
#include <doca_dev.h>
#include <doca_flow.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct doca_devinfo {
	const char *name;
};

struct doca_devinfo_rep {
	const char *name;
};

struct doca_flow_pipe_cfg {
	bool root;
	bool ipv4_only; /* that is all it matches; otherwise it matches everything */
	uint32_t room;
};

struct doca_flow_pipe {
	bool there;
	struct doca_flow_pipe_cfg made;
	uint32_t used;
	struct doca_flow_fwd forward;
	struct doca_flow_fwd miss;
	struct doca_flow_fwd rest; /* of the entry that matches what no rule does, once DOCA took it */
};

struct doca_flow_pipe_entry {
	bool there;
	struct doca_flow_pipe *pipe;
	struct doca_flow_fwd rest; /* NONE: it is a rule's */
	void *context;
	struct doca_flow_resource_query counter;
};

static struct doca_devinfo device_info = { "p0" };
static struct doca_devinfo_rep rep_infos[] = { { "pf0hpf" }, { "pf0vf0" } };
static struct doca_devinfo *devices[] = { &device_info };
static struct doca_devinfo_rep *reps[] = { &rep_infos[0], &rep_infos[1] };

#define DEFAULT_ROOM 8192

static char calls[1 << 20];
static const char *failing;
static int calls_left; /* of the failing function, that do not fail */
static int open_things;
static bool isolated;
static int open_ports;
static bool representor; /* of the port that is configured */
static struct doca_flow_pipe_cfg pipe_config;
static struct doca_flow_pipe pipes[16];
static int made_pipes;
static char dropped[64];
static enum fake_answer answer;
static doca_flow_entry_process_cb processed;
static struct doca_flow_pipe_entry entries[1 << 14];
static int added;
static struct doca_flow_pipe_entry *asked; /* for, and not yet answered */
static bool to_remove; /* that one */

/* What stands for everything that is only handed around. */
static char something;

void fake_reset(void)
{
	calls[0] = '\0';
	failing = NULL;
	open_things = 0;
	isolated = false;
	open_ports = 0;
	memset(pipes, 0, sizeof(pipes));
	made_pipes = 0;
	dropped[0] = '\0';
	answer = FAKE_TAKES;
	processed = NULL;
	memset(entries, 0, sizeof(entries));
	added = 0;
	asked = NULL;
}

const char *fake_calls(void)
{
	return calls;
}

void fake_forget_calls(void)
{
	calls[0] = '\0';
}

void fake_fail(const char *function, int nth)
{
	failing = function;
	calls_left = nth - 1;
}

const char *fake_dropped(void)
{
	return *dropped ? dropped : NULL;
}

int fake_open(void)
{
	int i, count = open_things;

	for (i = 0; i < added; i++)
		count += entries[i].there;
	return count;
}

void fake_answer(enum fake_answer how)
{
	answer = how;
}

void fake_packets(uint64_t packets, uint64_t bytes)
{
	entries[added - 1].counter.counter.total_pkts = packets;
	entries[added - 1].counter.counter.total_bytes = bytes;
}

/* Writes a call down, and says what comes of it. */
__attribute__((format(printf, 2, 3))) static doca_error_t call(const char *function, const char *format, ...)
{
	size_t used = strlen(calls);
	va_list args;

	used += (size_t)snprintf(calls + used, sizeof(calls) - used, "%s(", function);
	va_start(args, format);
	used += (size_t)vsnprintf(calls + used, sizeof(calls) - used, format, args);
	va_end(args);
	if (used + 3 > sizeof(calls))
		abort();
	strcat(calls, ")\n");
	if (!failing || strcmp(failing, function) != 0)
		return DOCA_SUCCESS;
	return calls_left-- > 0 ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE;
}

static doca_error_t open_this(doca_error_t result, void *where, void *handed)
{
	if (result != DOCA_SUCCESS)
		return result;
	memcpy(where, &handed, sizeof(handed));
	open_things++;
	return result;
}

static doca_error_t open_one(doca_error_t result, void *where)
{
	return open_this(result, where, &something);
}

/* What fails to close is closed all the same: nobody can try again. */
static doca_error_t close_one(doca_error_t result)
{
	open_things--;
	return result;
}

/* Whether a packet that no rule matches gets from a pipe to the kernel. */
static bool leads_to_kernel(const struct doca_flow_pipe *pipe, bool ipv4)
{
	const struct doca_flow_fwd *next;

	if (!pipe || !pipe->there)
		return false;
	next = &pipe->rest;
	if (next->type == DOCA_FLOW_FWD_NONE || (pipe->made.ipv4_only && !ipv4))
		next = &pipe->miss;
	if (next->type == DOCA_FLOW_FWD_PIPE)
		return leads_to_kernel(next->next_pipe, ipv4);
	return next->type == DOCA_FLOW_FWD_TARGET;
}

/* Notes the first call after which packets are dropped. */
static void watch_packets(const char *function)
{
	bool arrive = isolated;
	int i;

	for (i = 0; i < made_pipes; i++) {
		if (pipes[i].there && pipes[i].made.root)
			arrive = leads_to_kernel(&pipes[i], true) && leads_to_kernel(&pipes[i], false);
	}
	if (open_ports && !arrive && !*dropped)
		snprintf(dropped, sizeof(dropped), "%s", function);
}

const char *doca_error_get_descr(doca_error_t error)
{
	return error == DOCA_ERROR_NOT_FOUND ? "not found" : "refused by the fake";
}

doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count)
{
	doca_error_t result = open_one(call("devinfo_create_list", " "), list);

	*list = devices;
	*count = 1;
	return result;
}

doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **list)
{
	(void)list;
	return close_one(DOCA_SUCCESS);
}

doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *info, char *name, uint32_t size)
{
	snprintf(name, size, "%s", info->name);
	return DOCA_SUCCESS;
}

doca_error_t doca_dev_open(struct doca_devinfo *info, struct doca_dev **device)
{
	return open_one(call("dev_open", "%s", info->name), device);
}

doca_error_t doca_dev_close(struct doca_dev *device)
{
	(void)device;
	return close_one(call("dev_close", " "));
}

doca_error_t doca_devinfo_rep_create_list(struct doca_dev *device, int filter, struct doca_devinfo_rep ***list,
					  uint32_t *count)
{
	doca_error_t result = open_one(call("devinfo_rep_create_list", "%d", filter), list);

	(void)device;
	*list = reps;
	*count = 2;
	return result;
}

doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **list)
{
	(void)list;
	return close_one(DOCA_SUCCESS);
}

doca_error_t doca_devinfo_rep_get_iface_name(const struct doca_devinfo_rep *info, char *name, uint32_t size)
{
	snprintf(name, size, "%s", info->name);
	return DOCA_SUCCESS;
}

doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *info, struct doca_dev_rep **representor)
{
	return open_one(call("dev_rep_open", "%s", info->name), representor);
}

doca_error_t doca_dev_rep_close(struct doca_dev_rep *representor)
{
	(void)representor;
	return close_one(call("dev_rep_close", " "));
}

doca_error_t doca_flow_cfg_create(struct doca_flow_cfg **config)
{
	return open_one(call("cfg_create", " "), config);
}

doca_error_t doca_flow_cfg_destroy(struct doca_flow_cfg *config)
{
	(void)config;
	return close_one(DOCA_SUCCESS);
}

doca_error_t doca_flow_cfg_set_pipe_queues(struct doca_flow_cfg *config, uint16_t queues)
{
	(void)config;
	return call("cfg_set_pipe_queues", "%u", queues);
}

doca_error_t doca_flow_cfg_set_mode_args(struct doca_flow_cfg *config, const char *mode)
{
	(void)config;
	isolated = strstr(mode, "isolated") != NULL;
	return call("cfg_set_mode_args", "%s", mode);
}

doca_error_t doca_flow_cfg_set_resource_mode(struct doca_flow_cfg *config, enum doca_flow_resource_mode mode)
{
	(void)config;
	return call("cfg_set_resource_mode", "%s", mode == DOCA_FLOW_RESOURCE_MODE_PORT ? "port" : "system");
}

doca_error_t doca_flow_cfg_set_cb_entry_process(struct doca_flow_cfg *config, doca_flow_entry_process_cb callback)
{
	(void)config;
	processed = callback;
	return call("cfg_set_cb_entry_process", " ");
}

doca_error_t doca_flow_init(struct doca_flow_cfg *config)
{
	void *handed;

	(void)config;
	return open_one(call("init", " "), &handed);
}

void doca_flow_destroy(void)
{
	close_one(call("destroy", " "));
}

doca_error_t doca_flow_port_cfg_create(struct doca_flow_port_cfg **config)
{
	return open_one(call("port_cfg_create", " "), config);
}

doca_error_t doca_flow_port_cfg_destroy(struct doca_flow_port_cfg *config)
{
	(void)config;
	return close_one(DOCA_SUCCESS);
}

doca_error_t doca_flow_port_cfg_set_port_id(struct doca_flow_port_cfg *config, uint16_t id)
{
	(void)config;
	return call("port_cfg_set_port_id", "%u", id);
}

doca_error_t doca_flow_port_cfg_set_dev(struct doca_flow_port_cfg *config, struct doca_dev *device)
{
	(void)config;
	(void)device;
	representor = false;
	return call("port_cfg_set_dev", " ");
}

doca_error_t doca_flow_port_cfg_set_dev_rep(struct doca_flow_port_cfg *config, struct doca_dev_rep *rep)
{
	(void)config;
	(void)rep;
	representor = true;
	return call("port_cfg_set_dev_rep", " ");
}

doca_error_t doca_flow_port_cfg_set_actions_mem_size(struct doca_flow_port_cfg *config, uint32_t size)
{
	(void)config;
	return call("port_cfg_set_actions_mem_size", "%u", size);
}

doca_error_t doca_flow_port_cfg_set_nr_resources(struct doca_flow_port_cfg *config, enum doca_flow_resource resource,
						 uint32_t count)
{
	(void)config;
	return call("port_cfg_set_nr_resources", "%s, %u", resource == DOCA_FLOW_RESOURCE_COUNTER ? "counter" : "?",
		    count);
}

doca_error_t doca_flow_port_start(const struct doca_flow_port_cfg *config, struct doca_flow_port **port)
{
	doca_error_t result = call("port_start", " ");

	(void)config;
	if (result == DOCA_SUCCESS && representor && !open_ports)
		result = DOCA_ERROR_INVALID_VALUE;
	result = open_one(result, port);
	if (result == DOCA_SUCCESS)
		open_ports++;
	watch_packets("port_start");
	return result;
}

doca_error_t doca_flow_port_stop(struct doca_flow_port *port)
{
	(void)port;
	open_ports--;
	return close_one(call("port_stop", " "));
}

struct doca_flow_port *doca_flow_port_switch_get(const struct doca_flow_port *port)
{
	(void)port;
	return call("port_switch_get", " ") == DOCA_SUCCESS && open_ports ? (struct doca_flow_port *)&something : NULL;
}

doca_error_t doca_flow_get_target(enum doca_flow_target_type type, struct doca_flow_target **target)
{
	*target = (struct doca_flow_target *)&something;
	return call("get_target", "%s", type == DOCA_FLOW_TARGET_KERNEL ? "kernel" : "?");
}

doca_error_t doca_flow_pipe_cfg_create(struct doca_flow_pipe_cfg **config, struct doca_flow_port *port)
{
	(void)port;
	memset(&pipe_config, 0, sizeof(pipe_config));
	pipe_config.room = DEFAULT_ROOM;
	return open_this(call("pipe_cfg_create", " "), config, &pipe_config);
}

doca_error_t doca_flow_pipe_cfg_destroy(struct doca_flow_pipe_cfg *config)
{
	(void)config;
	return close_one(DOCA_SUCCESS);
}

doca_error_t doca_flow_pipe_cfg_set_name(struct doca_flow_pipe_cfg *config, const char *name)
{
	(void)config;
	return call("pipe_cfg_set_name", "%s", name);
}

doca_error_t doca_flow_pipe_cfg_set_type(struct doca_flow_pipe_cfg *config, enum doca_flow_pipe_type type)
{
	(void)config;
	return call("pipe_cfg_set_type", "%s", type == DOCA_FLOW_PIPE_CONTROL ? "control" : "basic");
}

doca_error_t doca_flow_pipe_cfg_set_is_root(struct doca_flow_pipe_cfg *config, bool root)
{
	config->root = root;
	return call("pipe_cfg_set_is_root", "%d", root);
}

doca_error_t doca_flow_pipe_cfg_set_nr_entries(struct doca_flow_pipe_cfg *config, uint32_t count)
{
	config->room = count;
	return call("pipe_cfg_set_nr_entries", "%u", count);
}

doca_error_t doca_flow_pipe_cfg_set_match(struct doca_flow_pipe_cfg *config, const struct doca_flow_match *match,
					  const struct doca_flow_match *match_mask)
{
	(void)match_mask;
	config->ipv4_only = match->parser_meta.outer_l3_type == DOCA_FLOW_L3_META_IPV4;
	return call("pipe_cfg_set_match", "l3 %u", match->parser_meta.outer_l3_type);
}

/* Where packets go, for the eye. */
static const char *write_forward(char to[32], const struct doca_flow_fwd *forward)
{
	static const struct doca_flow_fwd none;

	if (!forward)
		forward = &none;
	snprintf(to, 32, "%s", forward->type == DOCA_FLOW_FWD_TARGET ? "kernel" : "none");
	if (forward->type == DOCA_FLOW_FWD_PORT)
		snprintf(to, 32, "%u", forward->port_id);
	if (forward->type == DOCA_FLOW_FWD_PIPE && forward->next_pipe)
		snprintf(to, 32, "pipe %d", (int)(forward->next_pipe - pipes));
	return to;
}

static bool is_kernel(const struct doca_flow_fwd *forward)
{
	return forward && forward->type == DOCA_FLOW_FWD_TARGET;
}

doca_error_t doca_flow_pipe_create(const struct doca_flow_pipe_cfg *config, const struct doca_flow_fwd *forward,
				   const struct doca_flow_fwd *miss, struct doca_flow_pipe **pipe)
{
	char hit_text[32], miss_text[32];
	doca_error_t result = call("pipe_create", "%s, miss %s", write_forward(hit_text, forward),
				   write_forward(miss_text, miss));

	if (config->root && (is_kernel(forward) || is_kernel(miss)))
		result = DOCA_ERROR_INVALID_VALUE;
	if (made_pipes == sizeof(pipes) / sizeof(pipes[0]))
		abort();
	result = open_this(result, pipe, &pipes[made_pipes]);
	if (result != DOCA_SUCCESS)
		return result;
	pipes[made_pipes].there = true;
	pipes[made_pipes].made = *config;
	if (forward)
		pipes[made_pipes].forward = *forward;
	if (miss)
		pipes[made_pipes].miss = *miss;
	made_pipes++;
	watch_packets("pipe_create");
	return result;
}

/* Takes its entries along. */
void doca_flow_pipe_destroy(struct doca_flow_pipe *pipe)
{
	int i;

	for (i = 0; i < added; i++) {
		if (entries[i].pipe == pipe)
			entries[i].there = false;
	}
	pipe->there = false;
	close_one(call("pipe_destroy", "%d", (int)(pipe - pipes)));
	watch_packets("pipe_destroy");
}

static void write_mac(char *to, const uint8_t mac[6], const uint8_t mask[6])
{
	int i;

	for (i = 0; i < 6; i++)
		sprintf(to + 2 * i, "%02x", mac[i] & mask[i]);
}

/* What an entry matches: what is masked out cannot be seen. */
static void write_match(char *to, size_t size, const struct doca_flow_match *value, const struct doca_flow_match *mask)
{
	const struct doca_flow_header_format *v = &value->outer, *m = &mask->outer;
	char src[INET_ADDRSTRLEN], dst[INET_ADDRSTRLEN], src_mask[INET_ADDRSTRLEN], dst_mask[INET_ADDRSTRLEN];
	bool tcp = v->l4_type_ext == DOCA_FLOW_L4_TYPE_EXT_TCP;
	const struct doca_flow_header_l4_port *ports = tcp ? &v->tcp.l4_port : &v->udp.l4_port;
	const struct doca_flow_header_l4_port *port_masks = tcp ? &m->tcp.l4_port : &m->udp.l4_port;

	snprintf(to, size, "port %u&%x l3 %u&%x l4 %u&%x %s/%s to %s/%s proto %u&%x ext %u ports %u&%x %u&%x",
		 value->parser_meta.port_id, mask->parser_meta.port_id, value->parser_meta.outer_l3_type,
		 mask->parser_meta.outer_l3_type, value->parser_meta.outer_l4_type, mask->parser_meta.outer_l4_type,
		 inet_ntop(AF_INET, &v->ip4.src_ip, src, sizeof(src)),
		 inet_ntop(AF_INET, &m->ip4.src_ip, src_mask, sizeof(src_mask)),
		 inet_ntop(AF_INET, &v->ip4.dst_ip, dst, sizeof(dst)),
		 inet_ntop(AF_INET, &m->ip4.dst_ip, dst_mask, sizeof(dst_mask)), v->ip4.next_proto, m->ip4.next_proto,
		 v->l4_type_ext, ntohs(ports->src_port), port_masks->src_port, ntohs(ports->dst_port),
		 port_masks->dst_port);
}

static void write_actions(char *to, size_t size, const struct doca_flow_actions *actions,
			  const struct doca_flow_actions *mask, const struct doca_flow_action_descs *descriptions)
{
	char smac[13], dmac[13];

	*to = '\0';
	if (!actions)
		return;
	write_mac(smac, actions->outer.eth.src_mac, mask->outer.eth.src_mac);
	write_mac(dmac, actions->outer.eth.dst_mac, mask->outer.eth.dst_mac);
	snprintf(to, size, " set %s %s %s %s %u width %u", smac, dmac,
		 descriptions->desc_array[0].type == DOCA_FLOW_ACTION_ADD ? "add" : "set",
		 descriptions->desc_array[0].field_op.dst.field_string, actions->outer.ip4.ttl & mask->outer.ip4.ttl,
		 descriptions->desc_array[0].field_op.width);
}

static doca_error_t add_entry(doca_error_t result, struct doca_flow_pipe *pipe, const struct doca_flow_fwd *rest,
			      void *context, struct doca_flow_pipe_entry **entry)
{
	if (result == DOCA_SUCCESS && pipe->used == pipe->made.room)
		result = DOCA_ERROR_NO_MEMORY;
	if (result != DOCA_SUCCESS)
		return result;
	if (added == sizeof(entries) / sizeof(entries[0]))
		abort();
	pipe->used++;
	asked = &entries[added++];
	asked->there = true;
	asked->pipe = pipe;
	asked->context = context;
	if (rest)
		asked->rest = *rest;
	to_remove = false;
	*entry = asked;
	return result;
}

doca_error_t doca_flow_pipe_basic_add_entry(uint16_t queue, struct doca_flow_pipe *pipe,
					    const struct doca_flow_match *match, uint8_t action,
					    const struct doca_flow_actions *actions,
					    const struct doca_flow_monitor *monitor,
					    const struct doca_flow_fwd *forward, uint32_t flags, void *context,
					    struct doca_flow_pipe_entry **entry)
{
	(void)match;
	(void)action;
	(void)actions;
	(void)monitor;
	(void)forward;
	return add_entry(call("pipe_basic_add_entry", "queue %u pipe %d flags %u", queue, (int)(pipe - pipes), flags),
			 pipe, &pipe->forward, context, entry);
}

/* Whether DOCA would take the entry. */
static bool is_allowed(const struct doca_flow_pipe *pipe, const struct doca_flow_action_descs *descriptions,
		       const struct doca_flow_fwd *forward)
{
	int i;

	for (i = 0; descriptions && i < descriptions->nb_action_desc; i++) {
		if (!descriptions->desc_array[i].field_op.width)
			return false;
	}
	return !pipe->made.root || !is_kernel(forward);
}

doca_error_t doca_flow_pipe_control_add_entry(uint16_t queue, struct doca_flow_pipe *pipe,
					      const struct doca_flow_match *match,
					      const struct doca_flow_match *match_mask,
					      const struct doca_flow_match_condition *condition,
					      const struct doca_flow_actions *actions,
					      const struct doca_flow_actions *actions_mask,
					      const struct doca_flow_action_descs *descriptions,
					      const struct doca_flow_monitor *monitor, uint32_t priority,
					      const struct doca_flow_fwd *forward, void *context,
					      struct doca_flow_pipe_entry **entry)
{
	static const struct doca_flow_match all;
	bool matches_all = memcmp(match_mask, &all, sizeof(all)) == 0;
	char matched[512], done[128], to[32];
	doca_error_t result;

	(void)condition;
	write_match(matched, sizeof(matched), match, match_mask);
	write_actions(done, sizeof(done), actions, actions_mask, descriptions);
	result = call("pipe_control_add_entry", "queue %u pipe %d priority %u %s%s%s to %s", queue, (int)(pipe - pipes),
		      priority, matched, done,
		      monitor && monitor->counter_type == DOCA_FLOW_RESOURCE_TYPE_NON_SHARED ? " count" : "",
		      write_forward(to, forward));
	if (!is_allowed(pipe, descriptions, forward))
		result = DOCA_ERROR_INVALID_VALUE;
	return add_entry(result, pipe, matches_all ? forward : NULL, context, entry);
}

doca_error_t doca_flow_pipe_remove_entry(uint16_t queue, uint32_t flags, struct doca_flow_pipe_entry *entry)
{
	doca_error_t result = call("pipe_remove_entry", "queue %u flags %u", queue, flags);

	if (result == DOCA_SUCCESS) {
		asked = entry;
		to_remove = true;
	}
	return result;
}

/* Tells what has become of the entry that was asked for. */
static void answer_asked(void)
{
	struct doca_flow_pipe_entry *entry = asked;
	bool taken = answer == FAKE_TAKES;

	asked = NULL;
	entry->there = taken != to_remove;
	if (!entry->there)
		entry->pipe->used--;
	else if (entry->rest.type != DOCA_FLOW_FWD_NONE)
		entry->pipe->rest = entry->rest;
	processed(entry, 0, taken ? DOCA_FLOW_ENTRY_STATUS_SUCCESS : DOCA_FLOW_ENTRY_STATUS_ERROR,
		  to_remove ? DOCA_FLOW_ENTRY_OP_DEL : DOCA_FLOW_ENTRY_OP_ADD, entry->context);
	watch_packets("entries_process");
}

doca_error_t doca_flow_entries_process(struct doca_flow_port *port, uint16_t queue, uint64_t timeout, uint32_t most)
{
	doca_error_t result = call("entries_process", "queue %u most %u", queue, most);

	(void)port;
	(void)timeout;
	if (result == DOCA_SUCCESS && asked && answer != FAKE_IS_SILENT)
		answer_asked();
	return result;
}

doca_error_t doca_flow_resource_query_entry(struct doca_flow_pipe_entry *entry, struct doca_flow_resource_query *query)
{
	*query = entry->counter;
	return call("resource_query_entry", " ");
}
