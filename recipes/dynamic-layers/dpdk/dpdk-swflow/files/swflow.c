/* SPDX-License-Identifier: BSD-3-Clause */
#include "swflow.h"

#include <inttypes.h>
#include <string.h>

#define TYPE_IPV4 0x0800
#define TYPE_VLAN 0x8100
#define TYPE_QINQ 0x88a8

#define ETH_LEN 14
#define VLAN_LEN 4
#define IPV4_LEN 20
#define UDP_LEN 8
#define TCP_LEN 20

#define PROTO_TCP 6
#define PROTO_UDP 17

/* Where the IPv4 header's fields lie in it. */
#define IP_TOS 1
#define IP_TOTAL 2
#define IP_FRAGMENT 6
#define IP_TTL 8
#define IP_PROTO 9
#define IP_CHECKSUM 10
#define IP_SRC 12
#define IP_DST 16

/* The bit for more fragments, and the offset of this one. */
#define IP_FRAGMENT_MASK 0x3fff

static uint16_t read16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static void write16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static void dissect_l4(const uint8_t *data, size_t len, struct sw_frame *frame)
{
	uint8_t proto = frame->fields.ip_proto;

	if (proto == PROTO_UDP && len >= UDP_LEN)
		frame->layers |= SW_UDP;
	else if (proto == PROTO_TCP && len >= TCP_LEN)
		frame->layers |= SW_TCP;
	else
		return;
	memcpy(frame->fields.l4_src, data, 2);
	memcpy(frame->fields.l4_dst, data + 2, 2);
}

static void dissect_ipv4(const uint8_t *data, size_t len, struct sw_frame *frame)
{
	struct sw_fields *fields = &frame->fields;
	size_t header, total;

	if (len < IPV4_LEN || data[0] >> 4 != 4)
		return;
	header = (size_t)(data[0] & 0x0f) * 4;
	total = read16(data + IP_TOTAL);
	/* Short frames are padded on the wire, so len may be more than total. */
	if (header < IPV4_LEN || total < header || total > len)
		return;
	frame->layers |= SW_IPV4;
	fields->ip_tos = data[IP_TOS];
	fields->ip_ttl = data[IP_TTL];
	fields->ip_proto = data[IP_PROTO];
	memcpy(fields->ip_src, data + IP_SRC, 4);
	memcpy(fields->ip_dst, data + IP_DST, 4);
	if ((read16(data + IP_FRAGMENT) & IP_FRAGMENT_MASK) == 0)
		dissect_l4(data + header, total - header, frame);
}

void sw_dissect(const uint8_t *data, size_t len, struct sw_frame *frame)
{
	struct sw_fields *fields = &frame->fields;
	size_t at = ETH_LEN;
	uint16_t type;

	memset(frame, 0, sizeof(*frame));
	if (len < ETH_LEN)
		return;
	frame->layers = SW_ETH;
	memcpy(fields->eth_dst, data, SW_MAC_LEN);
	memcpy(fields->eth_src, data + SW_MAC_LEN, SW_MAC_LEN);
	memcpy(fields->eth_type, data + 2 * SW_MAC_LEN, 2);
	type = read16(fields->eth_type);
	if (type == TYPE_VLAN || type == TYPE_QINQ) {
		if (len < ETH_LEN + VLAN_LEN)
			return;
		frame->layers |= SW_VLAN;
		memcpy(fields->vlan_tci, data + ETH_LEN, 2);
		memcpy(fields->vlan_type, data + ETH_LEN + 2, 2);
		type = read16(fields->vlan_type);
		at += VLAN_LEN;
	}
	if (type != TYPE_IPV4)
		return;
	dissect_ipv4(data + at, len - at, frame);
	if (frame->layers & SW_IPV4)
		frame->ip_at = at;
}

void sw_table_init(struct sw_table *table)
{
	TAILQ_INIT(&table->rules);
	table->last_id = 0;
}

void sw_table_add(struct sw_table *table, struct sw_rule *rule)
{
	struct sw_rule *before;

	rule->id = ++table->last_id;
	TAILQ_FOREACH_REVERSE(before, &table->rules, sw_rules, next) {
		if (before->priority <= rule->priority)
			break;
	}
	if (before)
		TAILQ_INSERT_AFTER(&table->rules, before, rule, next);
	else
		TAILQ_INSERT_HEAD(&table->rules, rule, next);
}

bool sw_table_has(const struct sw_table *table, const struct sw_rule *rule)
{
	const struct sw_rule *have;

	TAILQ_FOREACH(have, &table->rules, next) {
		if (have == rule)
			return true;
	}
	return false;
}

void sw_table_remove(struct sw_table *table, struct sw_rule *rule)
{
	TAILQ_REMOVE(&table->rules, rule, next);
}

static bool rule_matches(const struct sw_rule *rule, const struct sw_frame *frame)
{
	const uint8_t *have = (const uint8_t *)&frame->fields;
	const uint8_t *want = (const uint8_t *)&rule->spec;
	const uint8_t *mask = (const uint8_t *)&rule->mask;
	size_t i;

	if ((frame->layers & rule->layers) != rule->layers)
		return false;
	/* What stands beside another in a pattern follows it at once: no tag lies between. */
	if ((rule->layers & SW_IPV4) && !(rule->layers & SW_VLAN) && (frame->layers & SW_VLAN))
		return false;
	for (i = 0; i < sizeof(struct sw_fields); i++) {
		if ((have[i] ^ want[i]) & mask[i])
			return false;
	}
	return true;
}

/*
 * One less of time to live, and the header's checksum with it (RFC 1624): what
 * was right stays right, and what was wrong is not made right.
 */
static void decrement_ttl(uint8_t *ip)
{
	uint32_t before = read16(ip + IP_TTL);
	uint32_t sum;

	ip[IP_TTL]--;
	sum = (uint16_t)~read16(ip + IP_CHECKSUM);
	sum += (uint16_t)~before;
	sum += read16(ip + IP_TTL);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	write16(ip + IP_CHECKSUM, (uint16_t)~sum);
}

static void rewrite(const struct sw_rule *rule, const struct sw_frame *frame, uint8_t *data)
{
	if (rule->set_dst)
		memcpy(data, rule->new_dst, SW_MAC_LEN);
	if (rule->set_src)
		memcpy(data + SW_MAC_LEN, rule->new_src, SW_MAC_LEN);
	if (rule->dec_ttl)
		decrement_ttl(data + frame->ip_at);
}

static struct sw_rule *first_match(struct sw_table *table, bool transfer, uint32_t group,
				   const struct sw_frame *frame)
{
	struct sw_rule *rule;

	TAILQ_FOREACH(rule, &table->rules, next) {
		if (rule->transfer == transfer && rule->group == group && rule_matches(rule, frame))
			break;
	}
	return rule;
}

struct sw_rule *sw_table_apply(struct sw_table *table, bool transfer, uint8_t *data, size_t len)
{
	struct sw_frame frame;
	struct sw_rule *rule;

	sw_dissect(data, len, &frame);
	rule = first_match(table, transfer, 0, &frame);
	while (rule && rule->fate == SW_JUMP) {
		rule->hits++;
		rule->bytes += len;
		rule = first_match(table, transfer, rule->jump, &frame);
	}
	if (!rule)
		return NULL;
	if (rule->dec_ttl && (!(frame.layers & SW_IPV4) || frame.fields.ip_ttl <= 1))
		return NULL;
	rule->hits++;
	rule->bytes += len;
	if (rule->fate == SW_FORWARD)
		rewrite(rule, &frame, data);
	return rule;
}

void sw_rule_read(struct sw_rule *rule, bool reset, uint64_t *hits, uint64_t *bytes)
{
	*hits = rule->hits;
	*bytes = rule->bytes;
	if (reset) {
		rule->hits = 0;
		rule->bytes = 0;
	}
}

enum form {
	FORM_MAC,
	FORM_ADDRESS,
	FORM_NUMBER,
	FORM_HEX,
};

struct field {
	uint32_t layers;
	const char *name;
	size_t at;
	size_t len;
	enum form form;
};

#define FIELD(layers, name, member, form) \
	{ layers, name, offsetof(struct sw_fields, member), sizeof(((struct sw_fields *)0)->member), form }

static const struct field fields[] = {
	FIELD(SW_ETH, "dst", eth_dst, FORM_MAC),
	FIELD(SW_ETH, "src", eth_src, FORM_MAC),
	FIELD(SW_ETH, "type", eth_type, FORM_HEX),
	FIELD(SW_VLAN, "tci", vlan_tci, FORM_HEX),
	FIELD(SW_VLAN, "inner_type", vlan_type, FORM_HEX),
	FIELD(SW_IPV4, "src", ip_src, FORM_ADDRESS),
	FIELD(SW_IPV4, "dst", ip_dst, FORM_ADDRESS),
	FIELD(SW_IPV4, "tos", ip_tos, FORM_HEX),
	FIELD(SW_IPV4, "ttl", ip_ttl, FORM_NUMBER),
	FIELD(SW_IPV4, "proto", ip_proto, FORM_NUMBER),
	FIELD(SW_UDP | SW_TCP, "src", l4_src, FORM_NUMBER),
	FIELD(SW_UDP | SW_TCP, "dst", l4_dst, FORM_NUMBER),
};

static void print_mac(FILE *out, const uint8_t *mac)
{
	fprintf(out, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

static void print_value(FILE *out, enum form form, const uint8_t *at, size_t len)
{
	unsigned int number = len == 1 ? at[0] : read16(at);

	switch (form) {
	case FORM_MAC:
		print_mac(out, at);
		break;
	case FORM_ADDRESS:
		fprintf(out, "%u.%u.%u.%u", at[0], at[1], at[2], at[3]);
		break;
	case FORM_NUMBER:
		fprintf(out, "%u", number);
		break;
	case FORM_HEX:
		fprintf(out, "0x%0*x", (int)len * 2, number);
		break;
	}
}

static bool all_bytes(const uint8_t *at, size_t len, uint8_t value)
{
	size_t i;

	for (i = 0; i < len; i++) {
		if (at[i] != value)
			return false;
	}
	return true;
}

static void print_field(FILE *out, const struct field *field, const struct sw_rule *rule)
{
	const uint8_t *spec = (const uint8_t *)&rule->spec + field->at;
	const uint8_t *mask = (const uint8_t *)&rule->mask + field->at;

	if (all_bytes(mask, field->len, 0))
		return;
	if (all_bytes(mask, field->len, 0xff)) {
		fprintf(out, " %s is ", field->name);
		print_value(out, field->form, spec, field->len);
		return;
	}
	fprintf(out, " %s spec ", field->name);
	print_value(out, field->form, spec, field->len);
	fprintf(out, " %s mask ", field->name);
	/* A mask is bits: a port of 0xfff0 says more than one of 65520. */
	print_value(out, field->form == FORM_NUMBER ? FORM_HEX : field->form, mask, field->len);
}

static void print_item(FILE *out, uint32_t layer, const char *name, const struct sw_rule *rule)
{
	size_t i;

	if (!(rule->layers & layer))
		return;
	fprintf(out, "%s", name);
	for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (fields[i].layers & layer)
			print_field(out, &fields[i], rule);
	}
	fprintf(out, " / ");
}

static void print_actions(FILE *out, const struct sw_rule *rule)
{
	if (rule->dec_ttl)
		fprintf(out, "dec_ttl / ");
	if (rule->set_src) {
		fprintf(out, "set_mac_src mac_addr ");
		print_mac(out, rule->new_src);
		fprintf(out, " / ");
	}
	if (rule->set_dst) {
		fprintf(out, "set_mac_dst mac_addr ");
		print_mac(out, rule->new_dst);
		fprintf(out, " / ");
	}
	if (rule->fate == SW_FORWARD)
		fprintf(out, "port_id id %u / ", rule->out_port);
	else if (rule->fate == SW_QUEUE)
		fprintf(out, "queue index 0 / ");
	else if (rule->fate == SW_JUMP)
		fprintf(out, "jump group %" PRIu32 " / ", rule->jump);
	else
		fprintf(out, "drop / ");
	if (rule->count)
		fprintf(out, "count / ");
}

void sw_rule_print(FILE *out, const char *port, const struct sw_rule *rule)
{
	fprintf(out, "%s: software rule %" PRIu32 ": group %" PRIu32 " priority %" PRIu32 " ingress %spattern ",
		port, rule->id, rule->group, rule->priority, rule->transfer ? "transfer " : "");
	print_item(out, SW_ETH, "eth", rule);
	print_item(out, SW_VLAN, "vlan", rule);
	print_item(out, SW_IPV4, "ipv4", rule);
	print_item(out, SW_UDP, "udp", rule);
	print_item(out, SW_TCP, "tcp", rule);
	fprintf(out, "end actions ");
	print_actions(out, rule);
	fprintf(out, "end: %" PRIu64 " hits, %" PRIu64 " bytes\n", rule->hits, rule->bytes);
}
