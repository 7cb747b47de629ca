// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A dataplane plugin of zebra that hands rules of policy based routing to the
 * switch of a BlueField, through DOCA Flow. Loaded by
 *   zebra -M "dplane_doca:p0 pf0hpf pf0vf0 counters=1000"
 * with the interface of the device first, those of its representors behind it,
 * and how many entries may count. A rule for ports without a protocol has two.
 */
#include <zebra.h>

#include "lib/command.h"
#include "lib/frr_pthread.h"
#include "lib/hash.h"
#include "lib/jhash.h"
#include "lib/json.h"
#include "lib/libfrr.h"
#include "lib/memory.h"
#include "lib/module.h"
#include "lib/pbr.h"
#include "lib/privs.h"
#include "lib/typesafe.h"
#include "zebra/zebra_dplane.h"
#include "zebra/zebra_router.h"

#include "zebra/doca/offload.h"

#define DEFAULT_COUNTERS 1024

/* What a rule can match, and an entry too. */
#define KNOWN_FILTERS                                                                              \
	(PBR_FILTER_SRC_IP | PBR_FILTER_DST_IP | PBR_FILTER_IP_PROTOCOL | PBR_FILTER_SRC_PORT |    \
	 PBR_FILTER_DST_PORT)

extern struct zebra_privs_t zserv_privs;

DEFINE_MTYPE_STATIC(ZEBRA, DOCA_RULE, "DOCA rule");
DEFINE_MTYPE_STATIC(ZEBRA, DOCA_ARGS, "DOCA arguments");

PREDECL_HASH(doca_rules);

/* A rule that the dataplane thread was told of, with its entries. */
struct doca_rule {
	struct doca_rules_item item;
	uint32_t unique;
	vrf_id_t vrf_id;
	char ifname[IFNAMSIZ];
	uint32_t seq;
	struct rule_entry wanted[RULE_ENTRIES];
	struct offload_entry *entries[RULE_ENTRIES];
	const char *refused; /* why it has none */
};

static int doca_rule_cmp(const struct doca_rule *a, const struct doca_rule *b)
{
	if (a->unique != b->unique)
		return a->unique < b->unique ? -1 : 1;
	if (a->vrf_id != b->vrf_id)
		return a->vrf_id < b->vrf_id ? -1 : 1;
	return strcmp(a->ifname, b->ifname);
}

static uint32_t doca_rule_hash(const struct doca_rule *rule)
{
	return jhash_2words(rule->unique, rule->vrf_id, string_hash_make(rule->ifname));
}

DECLARE_HASH(doca_rules, struct doca_rule, item, doca_rule_cmp, doca_rule_hash);

/*
 * The dataplane thread makes and removes entries, the main thread asks for
 * counters. DOCA's queue is for one of them at a time.
 */
static pthread_mutex_t doca_lock = PTHREAD_MUTEX_INITIALIZER;
static struct doca_rules_head doca_rules;
static struct offload_settings settings;
static char *arguments; /* which the settings point into */
static bool is_open;
static char why_not[256];

static void report(const char *format, va_list args)
{
	vsnprintf(why_not, sizeof(why_not), format, args);
	zlog_warn("%s", why_not);
}

/* ---- what zebra was given behind -M ---- */

static bool read_counters(const char *text)
{
	unsigned long count;
	char *end;

	errno = 0;
	count = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || count < 1 || count > OFFLOAD_COUNTERS_MAX) {
		snprintf(why_not, sizeof(why_not), "dplane_doca: counters=%.32s: want a number from 1 to %d", text,
			 OFFLOAD_COUNTERS_MAX);
		return false;
	}
	settings.counters = count;
	return true;
}

static bool read_interface(const char *name)
{
	if (strlen(name) >= IFNAMSIZ || strpbrk(name, "=:/\"'\\")) {
		snprintf(why_not, sizeof(why_not), "dplane_doca: %.32s: want names of interfaces, and counters=NUMBER",
			 name);
		return false;
	}
	if (settings.ports == OFFLOAD_PORTS_MAX) {
		snprintf(why_not, sizeof(why_not), "dplane_doca: more than %d interfaces", OFFLOAD_PORTS_MAX);
		return false;
	}
	settings.names[settings.ports++] = name;
	return true;
}

static bool read_word(const char *word)
{
	const char counters[] = "counters=";

	if (strncmp(word, counters, strlen(counters)) == 0)
		return read_counters(word + strlen(counters));
	return read_interface(word);
}

/* FRR gives us one text. None of the names that are allowed has a space. */
static bool read_arguments(const char *text)
{
	char *word, *rest;

	settings.counters = DEFAULT_COUNTERS;
	rest = arguments = XSTRDUP(MTYPE_DOCA_ARGS, text ? text : "");
	while ((word = strsep(&rest, " \t"))) {
		if (*word && !read_word(word))
			return false;
	}
	if (settings.ports < 2) {
		snprintf(why_not, sizeof(why_not),
			 "dplane_doca: want the device's interface and those of its representors: -M \"dplane_doca:p0 pf0vf0\"");
		return false;
	}
	return true;
}

/*
 * Since 3.0 DOCA Flow takes rte_flow from the ports of its process: the DPDK
 * plugin's flows would silently do nothing.
 */
static bool is_alone(void)
{
	const struct frrmod_runtime *module;

	for (module = frrmod_list; module; module = module->next) {
		if (strcmp(module->info->name, "dplane_dpdk") != 0)
			continue;
		snprintf(why_not, sizeof(why_not),
			 "dplane_doca: dplane_dpdk is loaded too, and DOCA would take its ports: leave one of the two -M away");
		return false;
	}
	return true;
}

/* ---- rules ---- */

static bool find_port(const char *ifname, uint16_t *number)
{
	int i;

	for (i = 0; i < settings.ports; i++) {
		if (strcmp(settings.names[i], ifname) == 0) {
			*number = i;
			return true;
		}
	}
	return false;
}

static bool find_port_by_index(int ifindex, uint16_t *number)
{
	char ifname[IFNAMSIZ];

	return ifindex && if_indextoname(ifindex, ifname) && find_port(ifname, number);
}

static struct rule_prefix prefix_of(const struct prefix *prefix)
{
	struct rule_prefix neutral = { .family = prefix->family == AF_INET ? 4 : 6, .len = prefix->prefixlen };

	if (prefix->family == AF_INET)
		neutral.addr = prefix->u.prefix4.s_addr;
	return neutral;
}

static uint32_t filters_of(uint32_t filters)
{
	uint32_t neutral = 0;

	if (filters & PBR_FILTER_SRC_IP)
		neutral |= RULE_SRC_IP;
	if (filters & PBR_FILTER_DST_IP)
		neutral |= RULE_DST_IP;
	if (filters & PBR_FILTER_IP_PROTOCOL)
		neutral |= RULE_PROTO;
	if (filters & PBR_FILTER_SRC_PORT)
		neutral |= RULE_SRC_PORT;
	if (filters & PBR_FILTER_DST_PORT)
		neutral |= RULE_DST_PORT;
	if (filters & ~KNOWN_FILTERS)
		neutral |= RULE_OTHER;
	return neutral;
}

/* The rule in terms that FRR has no part in. */
static struct rule rule_of(const struct zebra_dplane_ctx *ctx)
{
	struct rule rule = {
		.seq = dplane_ctx_rule_get_seq(ctx),
		.priority = dplane_ctx_rule_get_priority(ctx),
		.filters = filters_of(dplane_ctx_rule_get_filter_bm(ctx)),
		.proto = dplane_ctx_rule_get_ipproto(ctx),
		.src_port = dplane_ctx_rule_get_src_port(ctx),
		.dst_port = dplane_ctx_rule_get_dst_port(ctx),
	};

	rule.src = prefix_of(dplane_ctx_rule_get_src_ip(ctx));
	rule.dst = prefix_of(dplane_ctx_rule_get_dst_ip(ctx));
	rule.in_known = find_port(dplane_ctx_rule_get_ifname(ctx), &rule.in_port);
	rule.out_known = find_port_by_index(dplane_ctx_rule_get_out_ifindex(ctx), &rule.out_port);
	memcpy(rule.smac, dplane_ctx_rule_get_smac(ctx), sizeof(rule.smac));
	memcpy(rule.dmac, dplane_ctx_rule_get_dmac(ctx), sizeof(rule.dmac));
	return rule;
}

/* What DOCA does not take away stays in the table, and in "show". */
static bool uninstall(struct doca_rule *rule)
{
	bool gone = true;
	int i;

	for (i = 0; i < RULE_ENTRIES; i++) {
		if (!rule->entries[i])
			continue;
		frr_with_privs (&zserv_privs) {
			if (offload_remove(rule->entries[i]))
				rule->entries[i] = NULL;
			else
				gone = false;
		}
	}
	return gone;
}

/* All entries of a rule, or none. */
static void install(struct doca_rule *rule, const struct zebra_dplane_ctx *ctx)
{
	struct rule neutral = rule_of(ctx);
	int i, count;

	rule->seq = neutral.seq;
	rule->refused = is_open ? rule_refused(&neutral) : "DOCA Flow did not start";
	if (rule->refused)
		return;
	count = rule_entries(&neutral, rule->wanted);
	for (i = 0; i < count; i++) {
		frr_with_privs (&zserv_privs) {
			rule->entries[i] = offload_add(&rule->wanted[i]);
		}
		if (rule->entries[i])
			continue;
		rule->refused = "DOCA did not take it";
		uninstall(rule);
		return;
	}
}

static struct doca_rule *find_rule(const struct zebra_dplane_ctx *ctx, bool create)
{
	struct doca_rule key = { .unique = dplane_ctx_rule_get_unique(ctx), .vrf_id = dplane_ctx_get_vrf(ctx) };
	struct doca_rule *rule;

	strlcpy(key.ifname, dplane_ctx_rule_get_ifname(ctx), sizeof(key.ifname));
	rule = doca_rules_find(&doca_rules, &key);
	if (rule || !create)
		return rule;
	rule = XCALLOC(MTYPE_DOCA_RULE, sizeof(*rule));
	*rule = key;
	doca_rules_add(&doca_rules, rule);
	return rule;
}

/* Also for a rule that is there already: an update, or an add that comes twice. */
static void add_rule(const struct zebra_dplane_ctx *ctx)
{
	struct doca_rule *rule = find_rule(ctx, true);

	if (uninstall(rule))
		install(rule, ctx);
}

static void delete_rule(const struct zebra_dplane_ctx *ctx)
{
	struct doca_rule *rule = find_rule(ctx, false);

	if (!rule || !uninstall(rule))
		return;
	doca_rules_del(&doca_rules, rule);
	XFREE(MTYPE_DOCA_RULE, rule);
}

static void process_update(const struct zebra_dplane_ctx *ctx)
{
	enum dplane_op_e op = dplane_ctx_get_op(ctx);

	if (op != DPLANE_OP_RULE_ADD && op != DPLANE_OP_RULE_UPDATE && op != DPLANE_OP_RULE_DELETE)
		return;
	frr_with_mutex (&doca_lock) {
		if (op == DPLANE_OP_RULE_DELETE)
			delete_rule(ctx);
		else
			add_rule(ctx);
	}
}

static int process(struct zebra_dplane_provider *provider)
{
	int i, limit = dplane_provider_get_work_limit(provider);
	struct zebra_dplane_ctx *ctx;

	for (i = 0; i < limit; i++) {
		ctx = dplane_provider_dequeue_in_ctx(provider);
		if (!ctx)
			return 0;
		process_update(ctx);
		dplane_provider_enqueue_out_ctx(provider, ctx);
	}
	dplane_provider_work_ready(); /* there may be more than one turn can do */
	return 0;
}

/* ---- what is shown ---- */

struct shown {
	struct vty *vty;
	struct json_object *list; /* NULL: as text */
};

static void show_port(struct shown *shown, int number)
{
	const char *name = settings.names[number];
	struct json_object *json;

	if (!shown->list) {
		vty_out(shown->vty, "port %d interface %s ifindex %u\n", number, name, if_nametoindex(name));
		return;
	}
	json = json_object_new_object();
	json_object_int_add(json, "port", number);
	json_object_string_add(json, "interface", name);
	json_object_int_add(json, "ifindex", if_nametoindex(name));
	json_object_array_add(shown->list, json);
}

/* An end of a flow: its prefix, and a port where one is looked at. */
static const char *end_text(char *to, size_t size, uint32_t addr, uint32_t mask, uint16_t port)
{
	struct in_addr in = { .s_addr = addr }, netmask = { .s_addr = mask };
	char text[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &in, text, sizeof(text));
	if (port)
		snprintf(to, size, "%s/%d:%u", text, ip_masklen(netmask), ntohs(port));
	else
		snprintf(to, size, "%s/%d", text, ip_masklen(netmask));
	return to;
}

static const char *proto_text(char *to, size_t size, const struct rule_entry *entry)
{
	if (!entry->proto_mask)
		return "any";
	if (entry->proto == IPPROTO_UDP)
		return "udp";
	if (entry->proto == IPPROTO_TCP)
		return "tcp";
	snprintf(to, size, "%u", entry->proto);
	return to;
}

static void show_flow_text(struct vty *vty, const struct rule_entry *entry, uint64_t packets, uint64_t bytes)
{
	char src[32], dst[32], proto[4];

	vty_out(vty, "seq %u in %s out %s proto %s src %s dst %s packets %" PRIu64 " bytes %" PRIu64 "\n", entry->seq,
		settings.names[entry->in_port], settings.names[entry->out_port],
		proto_text(proto, sizeof(proto), entry),
		end_text(src, sizeof(src), entry->src, entry->src_mask, entry->src_port),
		end_text(dst, sizeof(dst), entry->dst, entry->dst_mask, entry->dst_port), packets, bytes);
}

static struct json_object *flow_json(const struct rule_entry *entry, uint64_t packets, uint64_t bytes)
{
	struct json_object *json = json_object_new_object();
	char text[32];

	json_object_int_add(json, "seq", entry->seq);
	json_object_string_add(json, "in", settings.names[entry->in_port]);
	json_object_string_add(json, "out", settings.names[entry->out_port]);
	json_object_int_add(json, "proto", entry->proto);
	json_object_string_add(json, "src", end_text(text, sizeof(text), entry->src, entry->src_mask, 0));
	json_object_int_add(json, "srcPort", ntohs(entry->src_port));
	json_object_string_add(json, "dst", end_text(text, sizeof(text), entry->dst, entry->dst_mask, 0));
	json_object_int_add(json, "dstPort", ntohs(entry->dst_port));
	json_object_int_add(json, "packets", packets);
	json_object_int_add(json, "bytes", bytes);
	return json;
}

static void show_refused(struct shown *shown, const struct doca_rule *rule)
{
	struct json_object *json;

	if (!shown->list) {
		vty_out(shown->vty, "seq %u in %s not offloaded: %s\n", rule->seq, rule->ifname, rule->refused);
		return;
	}
	json = json_object_new_object();
	json_object_int_add(json, "seq", rule->seq);
	json_object_string_add(json, "in", rule->ifname);
	json_object_string_add(json, "refused", rule->refused);
	json_object_array_add(shown->list, json);
}

static void show_rule(struct shown *shown, const struct doca_rule *rule)
{
	uint64_t packets, bytes;
	int i;

	if (rule->refused)
		show_refused(shown, rule);
	for (i = 0; i < RULE_ENTRIES; i++) {
		if (!rule->entries[i] || !offload_count(rule->entries[i], &packets, &bytes))
			continue;
		if (shown->list)
			json_object_array_add(shown->list, flow_json(&rule->wanted[i], packets, bytes));
		else
			show_flow_text(shown->vty, &rule->wanted[i], packets, bytes);
	}
}

/* Says why there is nothing, where there is nothing. */
static bool show_state(struct vty *vty, bool json)
{
	struct json_object *object;

	if (is_open)
		return true;
	if (!json) {
		vty_out(vty, "DOCA Flow did not start: %s\n", why_not);
		return false;
	}
	object = json_object_new_object();
	json_object_string_add(object, "error", why_not);
	vty_json(vty, object);
	return false;
}

static void show_list(struct shown *shown, const char *name)
{
	struct json_object *json;

	if (!shown->list)
		return;
	json = json_object_new_object();
	json_object_object_add(json, name, shown->list);
	vty_json(shown->vty, json);
}

#define SHOW_DOCA_STR "Zebra dataplane information\nDOCA Flow\n"

DEFUN (show_dplane_doca_port,
       show_dplane_doca_port_cmd,
       "show dplane doca port [json]",
       SHOW_STR
       SHOW_DOCA_STR
       "The ports of the switch\n"
       JSON_STR)
{
	struct shown shown = { .vty = vty };
	int i;

	if (!show_state(vty, use_json(argc, argv)))
		return CMD_WARNING;
	if (use_json(argc, argv))
		shown.list = json_object_new_array();
	for (i = 0; i < settings.ports; i++)
		show_port(&shown, i);
	show_list(&shown, "ports");
	return CMD_SUCCESS;
}

DEFUN (show_dplane_doca_pbr_flow,
       show_dplane_doca_pbr_flow_cmd,
       "show dplane doca pbr flow [json]",
       SHOW_STR
       SHOW_DOCA_STR
       "Policy based routing\n"
       "What the switch does, with its counters\n"
       JSON_STR)
{
	struct shown shown = { .vty = vty };
	struct doca_rule *rule;

	if (!show_state(vty, use_json(argc, argv)))
		return CMD_WARNING;
	if (use_json(argc, argv))
		shown.list = json_object_new_array();
	frr_with_mutex (&doca_lock) {
		frr_each (doca_rules, &doca_rules, rule)
			show_rule(&shown, rule);
	}
	show_list(&shown, "flows");
	return CMD_SUCCESS;
}

/* ---- the plugin's life ---- */

static int start(struct zebra_dplane_provider *provider)
{
	doca_rules_init(&doca_rules);
	install_element(VIEW_NODE, &show_dplane_doca_port_cmd);
	install_element(VIEW_NODE, &show_dplane_doca_pbr_flow_cmd);
	if (!is_alone() || !read_arguments(THIS_MODULE->load_args)) {
		zlog_err("%s", why_not);
		return -1;
	}
	frr_with_privs (&zserv_privs) {
		is_open = offload_open(&settings, report);
	}
	return is_open ? 0 : -1;
}

static int finish(struct zebra_dplane_provider *provider, bool early)
{
	struct doca_rule *rule;

	if (early)
		return 0;
	frr_with_mutex (&doca_lock) {
		while ((rule = doca_rules_pop(&doca_rules))) {
			uninstall(rule);
			XFREE(MTYPE_DOCA_RULE, rule);
		}
		frr_with_privs (&zserv_privs) {
			if (is_open)
				offload_close();
		}
		is_open = false;
	}
	XFREE(MTYPE_DOCA_ARGS, arguments);
	return 0;
}

/* Before the kernel: what that refuses, providers behind it are never told. */
static int register_provider(struct event_loop *loop)
{
	dplane_provider_register("zebra_dplane_doca", DPLANE_PRIO_PRE_KERNEL, DPLANE_PROV_FLAGS_DEFAULT, start,
				 process, finish, NULL, NULL);
	return 0;
}

static int module_init(void)
{
	hook_register(frr_late_init, register_provider);
	return 0;
}

FRR_MODULE_SETUP(.name = "dplane_doca", .version = "1.0",
		 .description = "hands policy based routing to a BlueField through DOCA Flow",
		 .init = module_init);
