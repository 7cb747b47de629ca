/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Holds what is asked of DOCA against what should be, with a fake in its place.
 * Prints one line for each test, and ends with 1 if any has failed.
 */
#include <arpa/inet.h>
#include <doca_flow.h>
#include <stdio.h>
#include <string.h>

#include "../offload.h"
#include "fake.h"

static const char *test;
static bool test_failed;
static bool any_failed;
static char reported[4096];

static const struct offload_settings settings = { .names = { "p0", "pf0vf0" }, .ports = 2, .counters = 1000 };

/* The rule of the post: DNS from one network goes to another next hop. */
static struct rule_entry dns(void)
{
	struct rule_entry rule = {
		.seq = 10, .priority = 305, .in_port = 1, .out_port = 0, .src = htonl(0x0a010000), .src_mask = htonl(0xffff0000),
		.proto = 17, .proto_mask = 255, .dst_port = htons(53), .dst_port_mask = 0xffff,
		.smac = { 2, 0, 0, 0, 0, 1 }, .dmac = { 2, 0, 0, 0, 0, 2 },
	};

	return rule;
}

static void fail(const char *what, const char *want, const char *got)
{
	printf("%s: %s: want %s\n  got %s\n", test, what, want, got);
	test_failed = true;
}

static void want(bool right, const char *what)
{
	if (!right)
		fail(what, "it", "not");
}

static void want_text(const char *got, const char *wanted, const char *what)
{
	if (strcmp(got, wanted) != 0)
		fail(what, wanted, got);
}

static void report(const char *format, va_list args)
{
	size_t used = strlen(reported);

	vsnprintf(reported + used, sizeof(reported) - used, format, args);
	used = strlen(reported);
	snprintf(reported + used, sizeof(reported) - used, "\n");
}

static void begin(const char *name)
{
	test = name;
	test_failed = false;
	reported[0] = '\0';
	fake_reset();
}

static void end(void)
{
	printf("%s: %s\n", test_failed ? "FAIL" : "PASS", test);
	any_failed = any_failed || test_failed;
}

static void test_life(void)
{
	begin("a device is opened, and given back in reverse");
	want(offload_open(&settings, report), "an open device");
	want_text(fake_calls(),
		  "devinfo_create_list( )\n"
		  "dev_open(p0)\n"
		  "cfg_create( )\n"
		  "cfg_set_pipe_queues(1)\n"
		  "cfg_set_mode_args(switch,isolated,hws)\n"
		  "cfg_set_resource_mode(port)\n"
		  "cfg_set_cb_entry_process( )\n"
		  "init( )\n"
		  "port_cfg_create( )\n"
		  "port_cfg_set_port_id(0)\n"
		  "port_cfg_set_actions_mem_size(131072)\n"
		  "port_cfg_set_nr_resources(counter, 1000)\n"
		  "port_cfg_set_dev( )\n"
		  "port_start( )\n"
		  "devinfo_rep_create_list(2)\n"
		  "dev_rep_open(pf0vf0)\n"
		  "port_cfg_create( )\n"
		  "port_cfg_set_port_id(1)\n"
		  "port_cfg_set_actions_mem_size(131072)\n"
		  "port_cfg_set_nr_resources(counter, 1000)\n"
		  "port_cfg_set_dev_rep( )\n"
		  "port_start( )\n"
		  "port_switch_get( )\n"
		  "get_target(kernel)\n"
		  "pipe_cfg_create( )\n"
		  "pipe_cfg_set_name(kernel)\n"
		  "pipe_cfg_set_type(basic)\n"
		  "pipe_cfg_set_is_root(0)\n"
		  "pipe_cfg_set_nr_entries(1)\n"
		  "pipe_cfg_set_match(l3 0)\n"
		  "pipe_create(kernel, miss none)\n"
		  "pipe_basic_add_entry(queue 0 pipe 0 flags 0)\n"
		  "entries_process(queue 0 most 1)\n"
		  "pipe_cfg_create( )\n"
		  "pipe_cfg_set_name(pbr)\n"
		  "pipe_cfg_set_type(control)\n"
		  "pipe_cfg_set_is_root(0)\n"
		  "pipe_cfg_set_nr_entries(1001)\n"
		  "pipe_create(none, miss none)\n"
		  "pipe_control_add_entry(queue 0 pipe 1 priority 4294967295 port 0&0 l3 0&0 l4 0&0 0.0.0.0/0.0.0.0 to "
		  "0.0.0.0/0.0.0.0 proto 0&0 ext 0 ports 0&0 0&0 to pipe 0)\n"
		  "entries_process(queue 0 most 1)\n"
		  "pipe_cfg_create( )\n"
		  "pipe_cfg_set_name(root)\n"
		  "pipe_cfg_set_type(basic)\n"
		  "pipe_cfg_set_is_root(1)\n"
		  "pipe_cfg_set_nr_entries(1)\n"
		  "pipe_cfg_set_match(l3 1)\n"
		  "pipe_create(pipe 1, miss pipe 0)\n"
		  "pipe_basic_add_entry(queue 0 pipe 2 flags 0)\n"
		  "entries_process(queue 0 most 1)\n",
		  "what is asked for");
	fake_forget_calls();
	offload_close();
	want_text(fake_calls(),
		  "pipe_destroy(2)\npipe_destroy(1)\npipe_destroy(0)\nport_stop( )\nport_stop( )\ndestroy( )\n"
		  "dev_rep_close( )\ndev_close( )\n",
		  "what is given back");
	want(fake_open() == 0 && !*reported, "nothing left open, and nothing to report");
	end();
}

/* Returns whether the device opened: its function has fewer than n calls. */
static bool open_with_failure(const char *function, int nth)
{
	bool opened;

	fake_reset();
	reported[0] = '\0';
	fake_fail(function, nth);
	opened = offload_open(&settings, report);
	if (opened) {
		offload_close();
		return true;
	}
	want(strncmp(reported, "doca: ", 6) == 0 && strstr(reported, "; "), "a report with what to do");
	want(fake_open() == 0, "nothing left open");
	want(!fake_dropped(), "no packet dropped");
	return false;
}

/* Whatever fails while a device is opened, nothing stays open, and it is said. */
static void test_open_fails(void)
{
	static const char *const functions[] = {
		"devinfo_create_list", "dev_open", "cfg_create", "cfg_set_pipe_queues", "cfg_set_mode_args",
		"cfg_set_resource_mode", "cfg_set_cb_entry_process", "init", "port_cfg_create", "port_cfg_set_port_id",
		"port_cfg_set_actions_mem_size", "port_cfg_set_nr_resources", "port_cfg_set_dev", "port_start",
		"devinfo_rep_create_list", "dev_rep_open", "port_cfg_set_dev_rep", "port_switch_get", "pipe_cfg_create",
		"pipe_cfg_set_name", "pipe_cfg_set_type", "pipe_cfg_set_is_root", "pipe_cfg_set_nr_entries",
		"pipe_cfg_set_match", "pipe_create", "get_target", "pipe_basic_add_entry", "pipe_control_add_entry",
		"entries_process",
	};
	size_t i;
	int nth;

	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		begin(functions[i]);
		want(!open_with_failure(functions[i], 1), "a device that does not open");
		for (nth = 2; nth < 100 && !open_with_failure(functions[i], nth); nth++)
			;
		want(nth < 100, "a device that opens without the failure");
		end();
	}
}

static void test_unknown_interfaces(void)
{
	struct offload_settings unknown = settings;

	begin("interfaces that DOCA does not have");
	unknown.names[0] = "eth0";
	want(!offload_open(&unknown, report) && strstr(reported, "interface eth0: not found"), "the device's name");
	unknown = settings;
	unknown.names[1] = "pf1vf7";
	want(!offload_open(&unknown, report) && strstr(reported, "representor pf1vf7: not found"), "the representor's");
	want(fake_open() == 0, "nothing left open");
	end();
}

static void test_entry(void)
{
	struct rule_entry rule = dns();
	struct offload_entry *entry;
	uint64_t packets, bytes;

	begin("an entry is added, counts, and is removed");
	want(offload_open(&settings, report), "an open device");
	fake_forget_calls();
	entry = offload_add(&rule);
	want(entry != NULL, "an entry");
	want_text(fake_calls(),
		  "pipe_control_add_entry(queue 0 pipe 1 priority 305 port 1&ffff l3 1&ffffffff l4 2&ffffffff "
		  "10.1.0.0/255.255.0.0 to 0.0.0.0/0.0.0.0 proto 17&ff ext 2 ports 0&0 53&ffff "
		  "set 020000000001 020000000002 add outer.ipv4.ttl 255 width 8 count to 0)\n"
		  "entries_process(queue 0 most 1)\n",
		  "what is asked for");
	if (entry) {
		fake_packets(22, 2332);
		want(offload_count(entry, &packets, &bytes) && packets == 22 && bytes == 2332, "what it counts");
		want(offload_remove(entry), "a removed entry");
	}
	offload_close();
	want(fake_open() == 0 && !*reported, "nothing left open, and nothing to report");
	end();
}

static void test_matches(void)
{
	struct rule_entry rule = dns();
	struct offload_entry *entry;

	begin("TCP's ports, and no ports at all");
	want(offload_open(&settings, report), "an open device");
	rule.proto = 6;
	rule.src_port = htons(1024);
	rule.src_port_mask = 0xffff;
	entry = offload_add(&rule);
	want(strstr(fake_calls(), "l4 1&ffffffff 10.1.0.0/255.255.0.0 to 0.0.0.0/0.0.0.0 proto 6&ff ext 1 ports 1024&ffff "
				  "53&ffff "),
	     "TCP's ports");
	want(entry && offload_remove(entry), "a removed entry");
	rule.src_port_mask = rule.dst_port_mask = 0;
	entry = offload_add(&rule);
	want(strstr(fake_calls(), "l4 0&0 10.1.0.0/255.255.0.0 to 0.0.0.0/0.0.0.0 proto 6&ff ext 0 ports 0&0 0&0 "),
	     "no ports: fragments are matched too");
	want(entry && offload_remove(entry), "a removed entry");
	offload_close();
	want(fake_open() == 0 && !*reported, "nothing left open, and nothing to report");
	end();
}

static void test_entry_fails(void)
{
	struct rule_entry rule = dns();
	struct offload_entry *entry;
	uint64_t packets, bytes;

	begin("entries that DOCA does not take, or keep");
	want(offload_open(&settings, report), "an open device");
	fake_fail("pipe_control_add_entry", 1);
	want(!offload_add(&rule), "no entry where it is refused at once");
	fake_fail(NULL, 1);
	fake_answer(FAKE_REFUSES);
	want(!offload_add(&rule), "no entry where it is refused later");
	want(strstr(reported, "the rule stays the kernel's"), "a report");
	fake_answer(FAKE_TAKES);
	entry = offload_add(&rule);
	want(entry != NULL, "an entry");
	if (entry) {
		fake_fail("resource_query_entry", 1);
		want(!offload_count(entry, &packets, &bytes), "no count");
		fake_fail("pipe_remove_entry", 1);
		want(!offload_remove(entry), "an entry that stays");
		want(strstr(reported, "packets may still take its way"), "a report of that");
		fake_fail(NULL, 1);
		want(offload_remove(entry), "an entry that goes the second time");
	}
	offload_close();
	want(fake_open() == 0, "nothing left open");
	end();
}

/* DOCA keeps the address of what it has not answered yet: it must stay valid. */
static void test_silence(void)
{
	struct rule_entry rule = dns(), next = dns();
	struct offload_entry *entry;

	begin("an entry that DOCA answers too late");
	want(offload_open(&settings, report), "an open device");
	fake_answer(FAKE_IS_SILENT);
	want(!offload_add(&rule), "no entry");
	want(strstr(reported, "it may come into force later"), "a report");
	fake_answer(FAKE_TAKES);
	entry = offload_add(&next);
	want(entry && offload_remove(entry), "the next one is added and removed");
	offload_close();
	want(fake_open() == 0, "nothing left open");
	end();
}

/* The kernel has what no rule matches, from the first port on until the last is gone. */
static void test_packets(void)
{
	begin("packets reach the kernel while a device is opened and given back");
	want(offload_open(&settings, report), "an open device");
	offload_close();
	want_text(fake_dropped() ? fake_dropped() : "no call", "no call", "the call after which packets are dropped");
	end();
}

/* DOCA makes pipes for 8192 entries unless it is told another number. */
static void test_room(void)
{
	static struct offload_entry *taken[9000];
	const uint32_t count = sizeof(taken) / sizeof(taken[0]);
	struct offload_settings many = settings;
	struct rule_entry rule = dns();
	uint32_t i;

	begin("as many entries as counters, and no more");
	many.counters = count;
	want(offload_open(&many, report), "an open device");
	for (i = 0; i < count && (taken[i] = offload_add(&rule)); i++)
		fake_forget_calls();
	want(i == count, "entries for all counters");
	want(!offload_add(&rule), "no entry beyond them");
	want(strstr(reported, "the rule stays the kernel's"), "a report");
	while (i-- > 0 && offload_remove(taken[i]))
		fake_forget_calls();
	want(i == UINT32_MAX, "all entries removed");
	offload_close();
	want(fake_open() == 0, "nothing left open");
	end();
}

/* Makes a pipe in a switch that offload_open has started. */
static struct doca_flow_pipe *make_pipe(bool root, const struct doca_flow_fwd *forward)
{
	struct doca_flow_pipe_cfg *config;
	struct doca_flow_pipe *pipe = NULL;

	doca_flow_pipe_cfg_create(&config, doca_flow_port_switch_get(NULL));
	doca_flow_pipe_cfg_set_is_root(config, root);
	if (doca_flow_pipe_create(config, forward, NULL, &pipe) != DOCA_SUCCESS)
		pipe = NULL;
	doca_flow_pipe_cfg_destroy(config);
	return pipe;
}

static doca_error_t add_to(struct doca_flow_pipe *pipe, uint32_t width, const struct doca_flow_fwd *forward)
{
	static const struct doca_flow_match all;
	static const struct doca_flow_actions actions;
	struct doca_flow_action_desc less = { .field_op.dst.field_string = "outer.ipv4.ttl", .field_op.width = width };
	const struct doca_flow_action_descs descriptions = { .nb_action_desc = 1, .desc_array = &less };
	struct doca_flow_pipe_entry *entry;

	return doca_flow_pipe_control_add_entry(0, pipe, &all, &all, NULL, &actions, &actions, &descriptions, NULL, 0,
						forward, NULL, &entry);
}

/* That the plugin passes proves something only where the fake can refuse. */
static void test_fake(void)
{
	struct doca_flow_fwd kernel = { .type = DOCA_FLOW_FWD_TARGET };
	const struct doca_flow_fwd port = { .type = DOCA_FLOW_FWD_PORT, .port_id = 1 };
	struct doca_flow_pipe *root, *other;

	begin("the fake refuses what DOCA refuses");
	want(!doca_flow_port_switch_get(NULL), "no switch without ports");
	want(offload_open(&settings, report), "an open device");
	doca_flow_get_target(DOCA_FLOW_TARGET_KERNEL, &kernel.target);
	want(!make_pipe(true, &kernel), "the kernel as target of a root pipe");
	other = make_pipe(false, &kernel);
	want(other != NULL, "the kernel as target of another pipe");
	want(!fake_dropped(), "no packet dropped yet");
	root = make_pipe(true, NULL);
	want(root && fake_dropped(), "packets dropped by a root pipe without entries");
	if (root && other) {
		want(add_to(root, 8, &kernel) != DOCA_SUCCESS, "an entry of a root pipe, to the kernel");
		want(add_to(other, 0, &port) != DOCA_SUCCESS, "a field without a width");
		want(add_to(other, 8, &port) == DOCA_SUCCESS, "a field with one");
	}
	end();
}

int main(void)
{
	test_life();
	test_open_fails();
	test_unknown_interfaces();
	test_entry();
	test_matches();
	test_entry_fails();
	test_packets();
	test_room();
	test_fake();
	test_silence(); /* the last: the fake's entries keep what DOCA may still answer to */
	return any_failed;
}
