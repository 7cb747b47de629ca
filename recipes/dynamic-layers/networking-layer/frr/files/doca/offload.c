/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "offload.h"

#include <doca_dev.h>
#include <doca_error.h>
#include <doca_flow.h>
#include <stdlib.h>
#include <string.h>

/* The one queue that entries are made and removed by. */
#define QUEUE 0

/* How long DOCA may take for an entry, in microseconds, and how often it is asked. */
#define ENTRY_WAIT_US 10000
#define ENTRY_WAITS 100

/*
 * Entries with a lower number come first. FRR's rules have theirs from its
 * sequence numbers; what none of them matches is the kernel's.
 */
#define KERNEL_PRIORITY UINT32_MAX

struct offload_entry {
	struct doca_flow_pipe_entry *entry;
	enum doca_flow_entry_status status;
	bool answered;
};

static struct {
	struct doca_dev *device;
	struct doca_dev_rep *representors[OFFLOAD_PORTS_MAX];
	struct doca_flow_port *ports[OFFLOAD_PORTS_MAX];
	int nr_ports;
	bool flow; /* is initialised */
	struct doca_flow_port *manager;
	struct doca_flow_pipe *root; /* IPv4 to rules, the rest to kernel */
	struct doca_flow_pipe *rules; /* what none matches to kernel */
	struct doca_flow_pipe *kernel;
	struct offload_entry to_rules;
	struct offload_entry to_kernel;
	struct offload_entry in_kernel;
	offload_report report;
} offload;

__attribute__((format(printf, 1, 2))) static void report(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	offload.report(format, args);
	va_end(args);
}

/* Says what DOCA refused, and whether it did not. */
static bool succeeded(doca_error_t result, const char *what, const char *name, const char *next)
{
	if (result == DOCA_SUCCESS)
		return true;
	report("doca: %s%s%s: %s; %s", what, *name ? " " : "", name, doca_error_get_descr(result), next);
	return false;
}

#define NEXT_DEVICE "look at \"devlink dev eswitch show\" (switchdev mode is needed) and \"ip link\""
#define NEXT_MEMORY "look whether huge pages are free (/proc/meminfo), and at the number of counters"
#define NEXT_API "the DOCA that runs may be another release than zebra was built for"

/* Opens the device that has an interface. */
static bool open_device(const char *name)
{
	struct doca_devinfo **list;
	char found[DOCA_DEVINFO_IFACE_NAME_SIZE];
	uint32_t i, count;
	doca_error_t result = DOCA_ERROR_NOT_FOUND;

	if (!succeeded(doca_devinfo_create_list(&list, &count), "list devices", "", NEXT_DEVICE))
		return false;
	for (i = 0; i < count && result == DOCA_ERROR_NOT_FOUND; i++) {
		if (doca_devinfo_get_iface_name(list[i], found, sizeof(found)) == DOCA_SUCCESS &&
		    strcmp(found, name) == 0)
			result = doca_dev_open(list[i], &offload.device);
	}
	doca_devinfo_destroy_list(list);
	return succeeded(result, "open the device of interface", name, NEXT_DEVICE);
}

static bool open_representor(const char *name, struct doca_dev_rep **representor)
{
	struct doca_devinfo_rep **list;
	char found[DOCA_DEVINFO_IFACE_NAME_SIZE];
	uint32_t i, count;
	doca_error_t result;

	result = doca_devinfo_rep_create_list(offload.device, DOCA_DEVINFO_REP_FILTER_NET, &list, &count);
	if (!succeeded(result, "list representors for", name, NEXT_DEVICE))
		return false;
	result = DOCA_ERROR_NOT_FOUND;
	for (i = 0; i < count && result == DOCA_ERROR_NOT_FOUND; i++) {
		if (doca_devinfo_rep_get_iface_name(list[i], found, sizeof(found)) == DOCA_SUCCESS &&
		    strcmp(found, name) == 0)
			result = doca_dev_rep_open(list[i], representor);
	}
	doca_devinfo_rep_destroy_list(list);
	return succeeded(result, "open the representor", name, NEXT_DEVICE);
}

/* DOCA says here what has come of an entry. */
static void entry_processed(struct doca_flow_pipe_entry *entry, uint16_t queue,
			    enum doca_flow_entry_status status, enum doca_flow_entry_op op, void *context)
{
	struct offload_entry *asked = context;

	(void)entry;
	(void)queue;
	(void)op;
	if (!asked)
		return;
	asked->status = status;
	asked->answered = true;
}

static doca_error_t set_flow(struct doca_flow_cfg *config)
{
	doca_error_t result;

	result = doca_flow_cfg_set_pipe_queues(config, QUEUE + 1);
	/* Isolated: a port that starts leaves its packets to the kernel until there is a root pipe. */
	if (result == DOCA_SUCCESS)
		result = doca_flow_cfg_set_mode_args(config, "switch,isolated,hws");
	if (result == DOCA_SUCCESS)
		result = doca_flow_cfg_set_resource_mode(config, DOCA_FLOW_RESOURCE_MODE_PORT);
	if (result == DOCA_SUCCESS)
		result = doca_flow_cfg_set_cb_entry_process(config, entry_processed);
	return result;
}

static bool start_flow(void)
{
	struct doca_flow_cfg *config;
	doca_error_t result;

	if (!succeeded(doca_flow_cfg_create(&config), "configure DOCA Flow", "", NEXT_MEMORY))
		return false;
	result = set_flow(config);
	if (result == DOCA_SUCCESS)
		result = doca_flow_init(config);
	doca_flow_cfg_destroy(config);
	offload.flow = result == DOCA_SUCCESS;
	return succeeded(result, "start DOCA Flow", "", NEXT_MEMORY);
}

/* DOCA wants a power of two, of room for the actions of all entries. */
static uint32_t actions_memory(uint32_t entries)
{
	uint32_t size = 64;

	while (size < (uint64_t)entries * DOCA_FLOW_MAX_ENTRY_ACTIONS_MEM_SIZE)
		size *= 2;
	return size;
}

static doca_error_t set_port(struct doca_flow_port_cfg *config, uint16_t number, uint32_t counters)
{
	doca_error_t result;

	result = doca_flow_port_cfg_set_port_id(config, number);
	if (result == DOCA_SUCCESS)
		result = doca_flow_port_cfg_set_actions_mem_size(config, actions_memory(counters));
	if (result == DOCA_SUCCESS)
		result = doca_flow_port_cfg_set_nr_resources(config, DOCA_FLOW_RESOURCE_COUNTER, counters);
	if (result != DOCA_SUCCESS)
		return result;
	if (number == 0)
		return doca_flow_port_cfg_set_dev(config, offload.device);
	return doca_flow_port_cfg_set_dev_rep(config, offload.representors[number]);
}

static bool start_port(uint16_t number, const char *name, uint32_t counters)
{
	struct doca_flow_port_cfg *config;
	doca_error_t result;

	if (number > 0 && !open_representor(name, &offload.representors[number]))
		return false;
	if (!succeeded(doca_flow_port_cfg_create(&config), "configure port", name, NEXT_MEMORY))
		return false;
	result = set_port(config, number, counters);
	if (result == DOCA_SUCCESS)
		result = doca_flow_port_start(config, &offload.ports[number]);
	doca_flow_port_cfg_destroy(config);
	return succeeded(result, "start port", name, NEXT_MEMORY);
}

/* What a pipe is made with. */
struct pipe_settings {
	const char *name;
	enum doca_flow_pipe_type type;
	bool root;
	uint32_t entries; /* DOCA's own limit is 8192 */
	struct doca_flow_match match; /* of a basic pipe */
	const struct doca_flow_fwd *forward;
	const struct doca_flow_fwd *miss;
};

static doca_error_t set_pipe(struct doca_flow_pipe_cfg *config, const struct pipe_settings *pipe)
{
	doca_error_t result;

	result = doca_flow_pipe_cfg_set_name(config, pipe->name);
	if (result == DOCA_SUCCESS)
		result = doca_flow_pipe_cfg_set_type(config, pipe->type);
	if (result == DOCA_SUCCESS)
		result = doca_flow_pipe_cfg_set_is_root(config, pipe->root);
	if (result == DOCA_SUCCESS)
		result = doca_flow_pipe_cfg_set_nr_entries(config, pipe->entries);
	if (result == DOCA_SUCCESS && pipe->type == DOCA_FLOW_PIPE_BASIC)
		result = doca_flow_pipe_cfg_set_match(config, &pipe->match, NULL);
	return result;
}

static bool create_pipe(const struct pipe_settings *pipe, struct doca_flow_pipe **created)
{
	struct doca_flow_pipe_cfg *config;
	doca_error_t result;

	result = doca_flow_pipe_cfg_create(&config, offload.manager);
	if (!succeeded(result, "configure the pipe", pipe->name, NEXT_MEMORY))
		return false;
	result = set_pipe(config, pipe);
	if (result == DOCA_SUCCESS)
		result = doca_flow_pipe_create(config, pipe->forward, pipe->miss, created);
	doca_flow_pipe_cfg_destroy(config);
	return succeeded(result, "create the pipe", pipe->name, NEXT_MEMORY);
}

/* Waits for what DOCA makes of an entry that it was asked for. */
static doca_error_t await_entry(struct offload_entry *asked)
{
	doca_error_t result;
	int i;

	for (i = 0; i < ENTRY_WAITS && !asked->answered; i++) {
		result = doca_flow_entries_process(offload.manager, QUEUE, ENTRY_WAIT_US, 1);
		if (result != DOCA_SUCCESS)
			return result;
	}
	if (!asked->answered)
		return DOCA_ERROR_TIME_OUT;
	return asked->status == DOCA_FLOW_ENTRY_STATUS_SUCCESS ? DOCA_SUCCESS : DOCA_ERROR_DRIVER;
}

/* The one entry of a basic pipe, which takes all that the pipe matches. */
static bool fill_basic_pipe(struct doca_flow_pipe *pipe, const char *name, struct offload_entry *asked)
{
	static const struct doca_flow_match all;
	doca_error_t result;

	result = doca_flow_pipe_basic_add_entry(QUEUE, pipe, &all, 0, NULL, NULL, NULL, DOCA_FLOW_ENTRY_FLAGS_NO_WAIT,
						asked, &asked->entry);
	if (result == DOCA_SUCCESS)
		result = await_entry(asked);
	return succeeded(result, "add the entry of the pipe", name, NEXT_API);
}

/* DOCA 3.3 refuses the kernel as the target of a root pipe. */
static bool create_kernel_pipe(void)
{
	struct doca_flow_fwd forward = { .type = DOCA_FLOW_FWD_TARGET };
	const struct pipe_settings pipe = {
		.name = "kernel", .type = DOCA_FLOW_PIPE_BASIC, .entries = 1, .forward = &forward,
	};
	doca_error_t result = doca_flow_get_target(DOCA_FLOW_TARGET_KERNEL, &forward.target);

	return succeeded(result, "find the way to the kernel", "", NEXT_API) &&
	       create_pipe(&pipe, &offload.kernel) &&
	       fill_basic_pipe(offload.kernel, pipe.name, &offload.in_kernel);
}

/* What matches no rule is for the kernel, as it would be without us. */
static bool send_rest_to_kernel(void)
{
	static const struct doca_flow_match all;
	const struct doca_flow_fwd forward = { .type = DOCA_FLOW_FWD_PIPE, .next_pipe = offload.kernel };
	struct offload_entry *asked = &offload.to_kernel;
	doca_error_t result;

	result = doca_flow_pipe_control_add_entry(QUEUE, offload.rules, &all, &all, NULL, NULL, NULL, NULL, NULL,
						  KERNEL_PRIORITY, &forward, asked, &asked->entry);
	if (result == DOCA_SUCCESS)
		result = await_entry(asked);
	return succeeded(result, "send what no rule matches to the kernel", "", NEXT_API);
}

/*
 * One pipe for the rules of all ports. Rules have prefixes of any length, and
 * of all kinds of pipes a control pipe alone takes a mask with each entry.
 */
static bool create_rules_pipe(uint32_t counters)
{
	const struct pipe_settings pipe = {
		.name = "pbr", .type = DOCA_FLOW_PIPE_CONTROL, .entries = counters + 1, /* and the kernel's */
	};

	return create_pipe(&pipe, &offload.rules) && send_rest_to_kernel();
}

/* Rules are for IPv4 alone. */
static bool create_root_pipe(void)
{
	const struct doca_flow_fwd to_rules = { .type = DOCA_FLOW_FWD_PIPE, .next_pipe = offload.rules };
	const struct doca_flow_fwd to_kernel = { .type = DOCA_FLOW_FWD_PIPE, .next_pipe = offload.kernel };
	const struct pipe_settings pipe = {
		.name = "root", .type = DOCA_FLOW_PIPE_BASIC, .root = true, .entries = 1,
		.match.parser_meta.outer_l3_type = DOCA_FLOW_L3_META_IPV4,
		.forward = &to_rules, .miss = &to_kernel,
	};

	return create_pipe(&pipe, &offload.root) && fill_basic_pipe(offload.root, pipe.name, &offload.to_rules);
}

/* The root pipe comes last: the switch takes packets from the kernel once they have a way to it. */
static bool create_pipes(uint32_t counters)
{
	offload.manager = doca_flow_port_switch_get(NULL);
	if (!offload.manager) {
		report("doca: the device's ports make no switch; " NEXT_DEVICE);
		return false;
	}
	return create_kernel_pipe() && create_rules_pipe(counters) && create_root_pipe();
}

static bool start_ports(const struct offload_settings *settings)
{
	int i;

	for (i = 0; i < settings->ports; i++) {
		offload.nr_ports = i + 1;
		if (!start_port((uint16_t)i, settings->names[i], settings->counters))
			return false;
	}
	return true;
}

bool offload_open(const struct offload_settings *settings, offload_report to)
{
	memset(&offload, 0, sizeof(offload));
	offload.report = to;
	if (open_device(settings->names[0]) && start_flow() && start_ports(settings) &&
	    create_pipes(settings->counters))
		return true;
	offload_close();
	return false;
}

static void destroy_pipe(struct doca_flow_pipe **pipe)
{
	if (*pipe)
		doca_flow_pipe_destroy(*pipe); /* and its entries */
	*pipe = NULL;
}

/* The root pipe goes first: the kernel has all packets then. */
static void destroy_pipes(void)
{
	destroy_pipe(&offload.root);
	destroy_pipe(&offload.rules);
	destroy_pipe(&offload.kernel);
}

/* In the order in which they were started, backwards: port 0 manages the others. */
static void stop_ports(void)
{
	int i;

	for (i = offload.nr_ports - 1; i >= 0; i--) {
		if (offload.ports[i])
			succeeded(doca_flow_port_stop(offload.ports[i]), "stop a port", "", NEXT_API);
		offload.ports[i] = NULL;
	}
}

static void close_representors(void)
{
	int i;

	for (i = offload.nr_ports - 1; i > 0; i--) {
		if (offload.representors[i])
			succeeded(doca_dev_rep_close(offload.representors[i]), "close a representor", "", NEXT_API);
		offload.representors[i] = NULL;
	}
}

void offload_close(void)
{
	destroy_pipes();
	stop_ports();
	if (offload.flow)
		doca_flow_destroy();
	offload.flow = false;
	close_representors();
	if (offload.device)
		succeeded(doca_dev_close(offload.device), "close the device", "", NEXT_API);
	offload.device = NULL;
	offload.nr_ports = 0;
}

static void match_addresses(const struct rule_entry *rule, struct doca_flow_header_format *value,
			    struct doca_flow_header_format *mask)
{
	value->l3_type = mask->l3_type = DOCA_FLOW_L3_TYPE_IP4;
	value->ip4.src_ip = rule->src;
	mask->ip4.src_ip = rule->src_mask;
	value->ip4.dst_ip = rule->dst;
	mask->ip4.dst_ip = rule->dst_mask;
	value->ip4.next_proto = rule->proto;
	mask->ip4.next_proto = rule->proto_mask;
}

static void match_tcp_ports(const struct rule_entry *rule, struct doca_flow_match *value, struct doca_flow_match *mask)
{
	value->parser_meta.outer_l4_type = DOCA_FLOW_L4_META_TCP;
	value->outer.l4_type_ext = mask->outer.l4_type_ext = DOCA_FLOW_L4_TYPE_EXT_TCP;
	value->outer.tcp.l4_port.src_port = rule->src_port;
	mask->outer.tcp.l4_port.src_port = rule->src_port_mask;
	value->outer.tcp.l4_port.dst_port = rule->dst_port;
	mask->outer.tcp.l4_port.dst_port = rule->dst_port_mask;
}

static void match_udp_ports(const struct rule_entry *rule, struct doca_flow_match *value, struct doca_flow_match *mask)
{
	value->parser_meta.outer_l4_type = DOCA_FLOW_L4_META_UDP;
	value->outer.l4_type_ext = mask->outer.l4_type_ext = DOCA_FLOW_L4_TYPE_EXT_UDP;
	value->outer.udp.l4_port.src_port = rule->src_port;
	mask->outer.udp.l4_port.src_port = rule->src_port_mask;
	value->outer.udp.l4_port.dst_port = rule->dst_port;
	mask->outer.udp.l4_port.dst_port = rule->dst_port_mask;
}

/*
 * Later fragments have no ports: an entry that looks at ports leaves them to
 * the kernel, as the parser finds no UDP or TCP in them.
 */
static void match(const struct rule_entry *rule, struct doca_flow_match *value, struct doca_flow_match *mask)
{
	memset(value, 0, sizeof(*value));
	memset(mask, 0, sizeof(*mask));
	value->parser_meta.port_id = rule->in_port;
	mask->parser_meta.port_id = UINT16_MAX;
	value->parser_meta.outer_l3_type = DOCA_FLOW_L3_META_IPV4;
	mask->parser_meta.outer_l3_type = (enum doca_flow_l3_meta)UINT32_MAX;
	match_addresses(rule, &value->outer, &mask->outer);
	if (!rule->src_port_mask && !rule->dst_port_mask)
		return;
	mask->parser_meta.outer_l4_type = (enum doca_flow_l4_meta)UINT32_MAX;
	if (rule->proto == 6)
		match_tcp_ports(rule, value, mask);
	else
		match_udp_ports(rule, value, mask);
}

/* What a router does to a packet: two addresses, and a TTL less by one. */
static void act(const struct rule_entry *rule, struct doca_flow_actions *actions, struct doca_flow_actions *mask)
{
	memset(actions, 0, sizeof(*actions));
	memset(mask, 0, sizeof(*mask));
	memcpy(actions->outer.eth.src_mac, rule->smac, sizeof(rule->smac));
	memcpy(actions->outer.eth.dst_mac, rule->dmac, sizeof(rule->dmac));
	memset(mask->outer.eth.src_mac, 0xff, sizeof(rule->smac));
	memset(mask->outer.eth.dst_mac, 0xff, sizeof(rule->dmac));
	actions->outer.l3_type = mask->outer.l3_type = DOCA_FLOW_L3_TYPE_IP4;
	actions->outer.ip4.ttl = UINT8_MAX; /* is added, and makes one less */
	mask->outer.ip4.ttl = UINT8_MAX;
}

static doca_error_t ask_for(const struct rule_entry *rule, struct offload_entry *asked)
{
	struct doca_flow_action_desc less = {
		.type = DOCA_FLOW_ACTION_ADD,
		.field_op.dst.field_string = "outer.ipv4.ttl",
		.field_op.width = 8, /* bits */
	};
	const struct doca_flow_action_descs descriptions = { .nb_action_desc = 1, .desc_array = &less };
	const struct doca_flow_monitor count = { .counter_type = DOCA_FLOW_RESOURCE_TYPE_NON_SHARED };
	const struct doca_flow_fwd forward = { .type = DOCA_FLOW_FWD_PORT, .port_id = rule->out_port };
	struct doca_flow_match value, mask;
	struct doca_flow_actions actions, actions_mask;
	doca_error_t result;

	match(rule, &value, &mask);
	act(rule, &actions, &actions_mask);
	result = doca_flow_pipe_control_add_entry(QUEUE, offload.rules, &value, &mask, NULL, &actions, &actions_mask,
						  &descriptions, &count, rule->priority, &forward, asked,
						  &asked->entry);
	return result == DOCA_SUCCESS ? await_entry(asked) : result;
}

struct offload_entry *offload_add(const struct rule_entry *rule)
{
	struct offload_entry *asked = calloc(1, sizeof(*asked));
	doca_error_t result = asked ? ask_for(rule, asked) : DOCA_ERROR_NO_MEMORY;

	if (asked && asked->entry && !asked->answered) {
		/* DOCA may still answer, to this address: it is not freed. */
		report("doca: add an entry: no answer; it may come into force later, restart zebra");
		return NULL;
	}
	if (succeeded(result, "add an entry", "", "the rule stays the kernel's; look at the number of counters"))
		return asked;
	free(asked);
	return NULL;
}

bool offload_remove(struct offload_entry *entry)
{
	doca_error_t result;

	entry->answered = false;
	result = doca_flow_pipe_remove_entry(QUEUE, DOCA_FLOW_ENTRY_FLAGS_NO_WAIT, entry->entry);
	if (result == DOCA_SUCCESS)
		result = await_entry(entry);
	if (!succeeded(result, "remove an entry", "", "packets may still take its way; restart zebra"))
		return false;
	free(entry);
	return true;
}

bool offload_count(struct offload_entry *entry, uint64_t *packets, uint64_t *bytes)
{
	struct doca_flow_resource_query query;
	doca_error_t result;

	memset(&query, 0, sizeof(query));
	result = doca_flow_resource_query_entry(entry->entry, &query);
	if (!succeeded(result, "ask for a counter", "", NEXT_API))
		return false;
	*packets = query.counter.total_pkts;
	*bytes = query.counter.total_bytes;
	return true;
}
