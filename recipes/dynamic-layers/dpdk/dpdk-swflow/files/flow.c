/* SPDX-License-Identifier: BSD-3-Clause */
/* rte_flow's patterns and actions made into rules, and refused where they cannot be. */
#include <errno.h>
#include <rte_malloc.h>
#include <string.h>

#include "net_swflow.h"

#define PRIORITY_MAX 65535
#define FATES "port_id, represented_port, queue, jump and drop"

typedef enum rte_flow_error_type error_type;

static int refuse(struct rte_flow_error *error, error_type type, const void *cause, const char *why)
{
	return rte_flow_error_set(error, ENOTSUP, type, cause, why);
}

static int refuse_item(struct rte_flow_error *error, const struct rte_flow_item *item, const char *why)
{
	return refuse(error, RTE_FLOW_ERROR_TYPE_ITEM, item, why);
}

static int refuse_action(struct rte_flow_error *error, const struct rte_flow_action *action, const char *why)
{
	return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION, action, why);
}

static int parse_attributes(const struct rte_flow_attr *attr, struct sw_rule *rule, struct rte_flow_error *error)
{
	if (attr->priority > PRIORITY_MAX)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ATTR_PRIORITY, attr, "net_swflow has priorities up to 65535");
	if (attr->egress)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ATTR_EGRESS, attr, "net_swflow has no egress rules");
	if (!attr->transfer && !attr->ingress)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ATTR_INGRESS, attr,
			      "a rule needs the attribute ingress or transfer");
	rule->transfer = attr->transfer;
	rule->group = attr->group;
	rule->priority = attr->priority;
	return 0;
}

/* A member of an item's header, and the field of a rule that it becomes. */
struct member {
	size_t from;
	size_t to;
	size_t len;
};

#define MEMBER(type, header, field) \
	{ offsetof(type, header), offsetof(struct sw_fields, field), sizeof(((struct sw_fields *)0)->field) }

static const struct member eth_members[] = {
	MEMBER(struct rte_flow_item_eth, hdr.dst_addr, eth_dst),
	MEMBER(struct rte_flow_item_eth, hdr.src_addr, eth_src),
	MEMBER(struct rte_flow_item_eth, hdr.ether_type, eth_type),
};

static const struct member vlan_members[] = {
	MEMBER(struct rte_flow_item_vlan, hdr.vlan_tci, vlan_tci),
	MEMBER(struct rte_flow_item_vlan, hdr.eth_proto, vlan_type),
};

static const struct member ipv4_members[] = {
	MEMBER(struct rte_flow_item_ipv4, hdr.type_of_service, ip_tos),
	MEMBER(struct rte_flow_item_ipv4, hdr.time_to_live, ip_ttl),
	MEMBER(struct rte_flow_item_ipv4, hdr.next_proto_id, ip_proto),
	MEMBER(struct rte_flow_item_ipv4, hdr.src_addr, ip_src),
	MEMBER(struct rte_flow_item_ipv4, hdr.dst_addr, ip_dst),
};

static const struct member udp_members[] = {
	MEMBER(struct rte_flow_item_udp, hdr.src_port, l4_src),
	MEMBER(struct rte_flow_item_udp, hdr.dst_port, l4_dst),
};

static const struct member tcp_members[] = {
	MEMBER(struct rte_flow_item_tcp, hdr.src_port, l4_src),
	MEMBER(struct rte_flow_item_tcp, hdr.dst_port, l4_dst),
};

/* An item that rules may have, which ones it must come after, and its members. */
struct item {
	enum rte_flow_item_type type;
	uint32_t layer;
	uint32_t after;
	const char *order;
	size_t size;
	const void *default_mask;
	const struct member *members;
	size_t nb_members;
	const char *limit;
};

#define MEMBERS(array) (array), RTE_DIM(array)

static const struct item items[] = {
	{ RTE_FLOW_ITEM_TYPE_ETH, SW_ETH, 0, "eth must be the first item",
	  sizeof(struct rte_flow_item_eth), &rte_flow_item_eth_mask, MEMBERS(eth_members),
	  "of eth only dst, src and type can be matched" },
	{ RTE_FLOW_ITEM_TYPE_VLAN, SW_VLAN, SW_ETH, "vlan must follow eth, and only one can be matched",
	  sizeof(struct rte_flow_item_vlan), &rte_flow_item_vlan_mask, MEMBERS(vlan_members),
	  "of vlan only tci and inner_type can be matched" },
	{ RTE_FLOW_ITEM_TYPE_IPV4, SW_IPV4, SW_ETH | SW_VLAN, "ipv4 must follow eth or vlan",
	  sizeof(struct rte_flow_item_ipv4), &rte_flow_item_ipv4_mask, MEMBERS(ipv4_members),
	  "of ipv4 only src, dst, proto, tos and ttl can be matched" },
	{ RTE_FLOW_ITEM_TYPE_UDP, SW_UDP, SW_IPV4, "udp must follow ipv4",
	  sizeof(struct rte_flow_item_udp), &rte_flow_item_udp_mask, MEMBERS(udp_members),
	  "of udp only src and dst can be matched" },
	{ RTE_FLOW_ITEM_TYPE_TCP, SW_TCP, SW_IPV4, "tcp must follow ipv4",
	  sizeof(struct rte_flow_item_tcp), &rte_flow_item_tcp_mask, MEMBERS(tcp_members),
	  "of tcp only src and dst can be matched" },
};

static const struct item *find_item(enum rte_flow_item_type type)
{
	size_t i;

	for (i = 0; i < RTE_DIM(items); i++) {
		if (items[i].type == type)
			return &items[i];
	}
	return NULL;
}

/* Copies what a rule can compare, and says whether the mask asks for more. */
static bool copy_members(const struct item *item, const void *spec, const void *mask, struct sw_rule *rule)
{
	uint8_t rest[64];
	size_t i;

	RTE_ASSERT(item->size <= sizeof(rest));
	memcpy(rest, mask, item->size);
	for (i = 0; i < item->nb_members; i++) {
		const struct member *member = &item->members[i];

		memcpy((uint8_t *)&rule->spec + member->to, (const uint8_t *)spec + member->from, member->len);
		memcpy((uint8_t *)&rule->mask + member->to, (const uint8_t *)mask + member->from, member->len);
		memset(rest + member->from, 0, member->len);
	}
	for (i = 0; i < item->size; i++) {
		if (rest[i])
			return false;
	}
	return true;
}

static int parse_item(const struct rte_flow_item *from, uint32_t *before, struct sw_rule *rule,
		      struct rte_flow_error *error)
{
	const struct item *item = find_item(from->type);
	const void *mask;

	if (!item)
		return refuse_item(error, from, "net_swflow matches eth, vlan, ipv4, udp and tcp only");
	if (item->after ? !(*before & item->after) : *before)
		return refuse_item(error, from, item->order);
	if (from->last)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ITEM_LAST, from, "net_swflow matches no ranges");
	if (from->mask && !from->spec)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ITEM_MASK, from, "a mask needs a spec");
	rule->layers |= item->layer;
	*before = item->layer;
	if (!from->spec)
		return 0;
	mask = from->mask ? from->mask : item->default_mask;
	if (!copy_members(item, from->spec, mask, rule))
		return refuse(error, RTE_FLOW_ERROR_TYPE_ITEM_MASK, from, item->limit);
	return 0;
}

static int parse_pattern(const struct rte_flow_item *pattern, struct sw_rule *rule, struct rte_flow_error *error)
{
	uint32_t before = 0;
	int rc;

	for (; pattern->type != RTE_FLOW_ITEM_TYPE_END; pattern++) {
		if (pattern->type == RTE_FLOW_ITEM_TYPE_VOID)
			continue;
		rc = parse_item(pattern, &before, rule, error);
		if (rc)
			return rc;
	}
	if (!rule->layers)
		return refuse_item(error, pattern, "the pattern needs an eth item");
	return 0;
}

static int parse_mac(const struct rte_flow_action *action, bool *set, uint8_t *mac, struct rte_flow_error *error)
{
	const struct rte_flow_action_set_mac *conf = action->conf;

	if (*set)
		return refuse_action(error, action, "this address is set twice");
	if (!conf)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "which address to set is missing");
	*set = true;
	memcpy(mac, conf->mac_addr, SW_MAC_LEN);
	return 0;
}

static int parse_fate(const struct rte_flow_action *action, enum sw_fate fate, struct sw_rule *rule,
		      struct rte_flow_error *error)
{
	if (rule->fate)
		return refuse_action(error, action, "a rule has one of " FATES);
	rule->fate = fate;
	return 0;
}

static int parse_forward(const struct rte_flow_action *action, uint32_t port_id, struct sw_rule *rule,
			 struct rte_flow_error *error)
{
	if (!swflow_port(port_id))
		return rte_flow_error_set(error, ENODEV, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action,
					  "the port to send to is none of net_swflow's");
	rule->out_port = (uint16_t)port_id;
	return parse_fate(action, SW_FORWARD, rule, error);
}

static int parse_port(const struct rte_flow_action *action, const struct swport *port, struct sw_rule *rule,
		      struct rte_flow_error *error)
{
	const struct rte_flow_action_port_id *by_id = action->conf;
	const struct rte_flow_action_ethdev *by_dev = action->conf;

	if (!action->conf)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "which port to send to is missing");
	if (action->type == RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT)
		return parse_forward(action, by_dev->port_id, rule, error);
	return parse_forward(action, by_id->original ? port->data->port_id : by_id->id, rule, error);
}

static int parse_flag(const struct rte_flow_action *action, bool *flag, struct rte_flow_error *error)
{
	if (*flag)
		return refuse_action(error, action, "this action stands twice in the rule");
	*flag = true;
	return 0;
}

static int parse_queue(const struct rte_flow_action *action, struct sw_rule *rule, struct rte_flow_error *error)
{
	const struct rte_flow_action_queue *queue = action->conf;

	if (rule->transfer)
		return refuse_action(error, action, "queue needs a rule without transfer");
	if (!queue || queue->index)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "net_swflow has receive queue 0 only");
	return parse_fate(action, SW_QUEUE, rule, error);
}

static int parse_jump(const struct rte_flow_action *action, struct sw_rule *rule, struct rte_flow_error *error)
{
	const struct rte_flow_action_jump *jump = action->conf;

	if (!jump || jump->group <= rule->group)
		return refuse(error, RTE_FLOW_ERROR_TYPE_ACTION_CONF, action, "a rule jumps to a higher group only");
	rule->jump = jump->group;
	return parse_fate(action, SW_JUMP, rule, error);
}

/* What only the switch does. */
static int parse_switch_action(const struct rte_flow_action *action, const struct swport *port, struct sw_rule *rule,
			       struct rte_flow_error *error)
{
	if (!rule->transfer)
		return refuse_action(error, action,
				     "without transfer net_swflow does count, queue, jump and drop only");
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_DEC_TTL:
		if (!(rule->layers & SW_IPV4))
			return refuse_action(error, action, "dec_ttl needs an ipv4 item");
		return parse_flag(action, &rule->dec_ttl, error);
	case RTE_FLOW_ACTION_TYPE_SET_MAC_SRC:
		return parse_mac(action, &rule->set_src, rule->new_src, error);
	case RTE_FLOW_ACTION_TYPE_SET_MAC_DST:
		return parse_mac(action, &rule->set_dst, rule->new_dst, error);
	case RTE_FLOW_ACTION_TYPE_PORT_ID:
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT:
		return parse_port(action, port, rule, error);
	default:
		return refuse_action(error, action,
				     "net_swflow does count, dec_ttl, set_mac_src, set_mac_dst, " FATES " only");
	}
}

static int parse_action(const struct rte_flow_action *action, const struct swport *port, struct sw_rule *rule,
			struct rte_flow_error *error)
{
	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_VOID:
		return 0;
	case RTE_FLOW_ACTION_TYPE_COUNT:
		return parse_flag(action, &rule->count, error);
	case RTE_FLOW_ACTION_TYPE_QUEUE:
		return parse_queue(action, rule, error);
	case RTE_FLOW_ACTION_TYPE_JUMP:
		return parse_jump(action, rule, error);
	case RTE_FLOW_ACTION_TYPE_DROP:
		return parse_fate(action, SW_DROP, rule, error);
	default:
		return parse_switch_action(action, port, rule, error);
	}
}

static int parse_actions(const struct rte_flow_action *actions, const struct swport *port, struct sw_rule *rule,
			 struct rte_flow_error *error)
{
	int rc;

	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		rc = parse_action(actions, port, rule, error);
		if (rc)
			return rc;
	}
	if (!rule->fate)
		return refuse_action(error, actions, "the rule needs one of " FATES);
	if (rule->fate == SW_JUMP && (rule->dec_ttl || rule->set_src || rule->set_dst))
		return refuse_action(error, actions, "a rule that jumps changes nothing");
	return 0;
}

static int parse(const struct swport *port, const struct rte_flow_attr *attr, const struct rte_flow_item *pattern,
		 const struct rte_flow_action *actions, struct sw_rule *rule, struct rte_flow_error *error)
{
	int rc;

	memset(rule, 0, sizeof(*rule));
	rc = parse_attributes(attr, rule, error);
	if (!rc)
		rc = parse_pattern(pattern, rule, error);
	if (!rc)
		rc = parse_actions(actions, port, rule, error);
	return rc;
}

static int flow_validate(struct rte_eth_dev *dev, const struct rte_flow_attr *attr,
			 const struct rte_flow_item pattern[], const struct rte_flow_action actions[],
			 struct rte_flow_error *error)
{
	struct sw_rule rule;
	int rc;

	pthread_mutex_lock(&swflow_lock);
	rc = parse(dev->data->dev_private, attr, pattern, actions, &rule, error);
	pthread_mutex_unlock(&swflow_lock);
	return rc;
}

static struct rte_flow *flow_create(struct rte_eth_dev *dev, const struct rte_flow_attr *attr,
				    const struct rte_flow_item pattern[], const struct rte_flow_action actions[],
				    struct rte_flow_error *error)
{
	struct swport *port = dev->data->dev_private;
	struct sw_rule *rule;
	int rc;

	/* mlx5 takes rules of started ports only, so what runs here runs there. */
	if (!dev->data->dev_started) {
		rte_flow_error_set(error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "port is not started");
		return NULL;
	}
	/* DPDK's memory, whose objects testpmd counts. */
	rule = rte_malloc("swflow_rule", sizeof(*rule), 0);
	if (!rule) {
		rte_flow_error_set(error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory for the rule");
		return NULL;
	}
	pthread_mutex_lock(&swflow_lock);
	rc = parse(port, attr, pattern, actions, rule, error);
	if (!rc)
		sw_table_add(&port->table, rule);
	pthread_mutex_unlock(&swflow_lock);
	if (!rc)
		return (struct rte_flow *)rule;
	rte_free(rule);
	return NULL;
}

/* A handle comes from outside: it is looked for before anything in it is read. */
static int find_rule(struct swport *port, struct rte_flow *flow, struct rte_flow_error *error)
{
	if (sw_table_has(&port->table, (struct sw_rule *)flow))
		return 0;
	return rte_flow_error_set(error, ENOENT, RTE_FLOW_ERROR_TYPE_HANDLE, flow, "no such rule on this port");
}

static int flow_destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct swport *port = dev->data->dev_private;
	int rc;

	pthread_mutex_lock(&swflow_lock);
	rc = find_rule(port, flow, error);
	if (!rc)
		sw_table_remove(&port->table, (struct sw_rule *)flow);
	pthread_mutex_unlock(&swflow_lock);
	if (!rc)
		rte_free(flow);
	return rc;
}

void swflow_remove_rules(struct swport *port)
{
	struct sw_rule *rule;

	while ((rule = TAILQ_FIRST(&port->table.rules)) != NULL) {
		sw_table_remove(&port->table, rule);
		rte_free(rule);
	}
}

static int flow_flush(struct rte_eth_dev *dev, struct rte_flow_error *error __rte_unused)
{
	pthread_mutex_lock(&swflow_lock);
	swflow_remove_rules(dev->data->dev_private);
	pthread_mutex_unlock(&swflow_lock);
	return 0;
}

static int query_count(struct sw_rule *rule, const struct rte_flow_action *action, struct rte_flow_query_count *count,
		       struct rte_flow_error *error)
{
	uint64_t hits, bytes;

	if (!rule->count)
		return refuse_action(error, action, "the rule has no count action");
	sw_rule_read(rule, count->reset, &hits, &bytes);
	count->hits_set = 1;
	count->bytes_set = 1;
	count->hits = hits;
	count->bytes = bytes;
	return 0;
}

static int flow_query(struct rte_eth_dev *dev, struct rte_flow *flow, const struct rte_flow_action *actions,
		      void *data, struct rte_flow_error *error)
{
	int rc;

	pthread_mutex_lock(&swflow_lock);
	rc = find_rule(dev->data->dev_private, flow, error);
	for (; !rc && actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		if (actions->type == RTE_FLOW_ACTION_TYPE_VOID)
			continue;
		if (actions->type == RTE_FLOW_ACTION_TYPE_COUNT)
			rc = query_count((struct sw_rule *)flow, actions, data, error);
		else
			rc = refuse_action(error, actions, "only count can be queried");
	}
	pthread_mutex_unlock(&swflow_lock);
	return rc;
}

static int flow_isolate(struct rte_eth_dev *dev, int on, struct rte_flow_error *error __rte_unused)
{
	struct swport *port = dev->data->dev_private;

	pthread_mutex_lock(&swflow_lock);
	port->isolated = on != 0;
	pthread_mutex_unlock(&swflow_lock);
	return 0;
}

static int flow_dump(struct rte_eth_dev *dev, struct rte_flow *flow, FILE *file, struct rte_flow_error *error)
{
	struct swport *port = dev->data->dev_private;
	struct sw_rule *rule;
	int rc = 0;

	pthread_mutex_lock(&swflow_lock);
	if (flow)
		rc = find_rule(port, flow, error);
	TAILQ_FOREACH(rule, &port->table.rules, next) {
		if (!rc && (!flow || (struct rte_flow *)rule == flow))
			sw_rule_print(file, dev->data->name, rule);
	}
	pthread_mutex_unlock(&swflow_lock);
	return rc;
}

const struct rte_flow_ops swflow_flow_ops = {
	.validate = flow_validate,
	.create = flow_create,
	.destroy = flow_destroy,
	.flush = flow_flush,
	.query = flow_query,
	.isolate = flow_isolate,
	.dev_dump = flow_dump,
};
