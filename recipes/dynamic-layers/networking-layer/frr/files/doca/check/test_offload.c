/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Holds what is asked of DOCA against what should be, with a fake in its place.
 * Prints one line for each test, and ends with 1 if any has failed.
 */
#include <arpa/inet.h>
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
		  "cfg_set_mode_args(switch,hws)\n"
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
		  "pipe_cfg_create( )\n"
		  "pipe_cfg_set_name(pbr)\n"
		  "pipe_cfg_set_type(control)\n"
		  "pipe_cfg_set_is_root(1)\n"
		  "pipe_create( )\n"
		  "get_target(kernel)\n"
		  "pipe_control_add_entry(queue 0 priority 4294967295 port 0&0 l3 0&0 l4 0&0 0.0.0.0/0.0.0.0 to "
		  "0.0.0.0/0.0.0.0 proto 0&0 ext 0 ports 0&0 0&0 to kernel)\n"
		  "entries_process(queue 0 most 1)\n",
		  "what is asked for");
	fake_forget_calls();
	offload_close();
	want_text(fake_calls(),
		  "pipe_destroy( )\nport_stop( )\nport_stop( )\ndestroy( )\ndev_rep_close( )\ndev_close( )\n",
		  "what is given back");
	want(fake_open() == 0 && !*reported, "nothing left open, and nothing to report");
	end();
}

/* Whatever fails while a device is opened, nothing stays open, and it is said. */
static void test_open_fails(void)
{
	static const char *const functions[] = {
		"devinfo_create_list", "dev_open", "cfg_create", "cfg_set_pipe_queues", "cfg_set_mode_args",
		"cfg_set_resource_mode", "cfg_set_cb_entry_process", "init", "port_cfg_create", "port_cfg_set_port_id",
		"port_cfg_set_actions_mem_size", "port_cfg_set_nr_resources", "port_cfg_set_dev", "port_start",
		"devinfo_rep_create_list", "dev_rep_open", "port_cfg_set_dev_rep", "port_switch_get", "pipe_cfg_create",
		"pipe_cfg_set_name", "pipe_cfg_set_type", "pipe_cfg_set_is_root", "pipe_create", "get_target",
		"pipe_control_add_entry", "entries_process",
	};
	size_t i;

	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		begin(functions[i]);
		fake_fail(functions[i]);
		want(!offload_open(&settings, report), "a device that does not open");
		want(strstr(fake_calls(), functions[i]), "a call of it");
		want(fake_open() == 0, "nothing left open");
		want(strncmp(reported, "doca: ", 6) == 0 && strstr(reported, "; "), "a report with what to do");
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
		  "pipe_control_add_entry(queue 0 priority 305 port 1&ffff l3 1&ffffffff l4 2&ffffffff "
		  "10.1.0.0/255.255.0.0 to 0.0.0.0/0.0.0.0 proto 17&ff ext 2 ports 0&0 53&ffff "
		  "set 020000000001 020000000002 add outer.ipv4.ttl 255 count to 0)\n"
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
	fake_fail("pipe_control_add_entry");
	want(!offload_add(&rule), "no entry where it is refused at once");
	fake_fail(NULL);
	fake_answer(FAKE_REFUSES);
	want(!offload_add(&rule), "no entry where it is refused later");
	want(strstr(reported, "the rule stays the kernel's"), "a report");
	fake_answer(FAKE_TAKES);
	entry = offload_add(&rule);
	want(entry != NULL, "an entry");
	if (entry) {
		fake_fail("resource_query_entry");
		want(!offload_count(entry, &packets, &bytes), "no count");
		fake_fail("pipe_remove_entry");
		want(!offload_remove(entry), "an entry that stays");
		want(strstr(reported, "packets may still take its way"), "a report of that");
		fake_fail(NULL);
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

int main(void)
{
	test_life();
	test_open_fails();
	test_unknown_interfaces();
	test_entry();
	test_matches();
	test_entry_fails();
	test_silence();
	return any_failed;
}
