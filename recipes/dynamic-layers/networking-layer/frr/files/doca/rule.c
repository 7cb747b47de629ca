/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#define RULE_PORTS (RULE_SRC_PORT | RULE_DST_PORT)

static bool is_zero(const uint8_t mac[6])
{
	static const uint8_t zero[6];

	return memcmp(mac, zero, sizeof(zero)) == 0;
}

static bool is_ipv4(const struct rule_prefix *prefix)
{
	return prefix->family == 4 && prefix->len <= 32;
}

const char *rule_refused(const struct rule *rule)
{
	if (!rule->in_known)
		return "its packets come in by an interface that is no port of DOCA's";
	if (!rule->out_known)
		return "its next hop is not behind a port of DOCA's";
	if (is_zero(rule->dmac) || is_zero(rule->smac))
		return "its next hop is not resolved";
	if (rule->filters & RULE_OTHER)
		return "it matches more than addresses, ports and IP protocol";
	if ((rule->filters & RULE_SRC_IP) && !is_ipv4(&rule->src))
		return "its source is not IPv4";
	if ((rule->filters & RULE_DST_IP) && !is_ipv4(&rule->dst))
		return "its destination is not IPv4";
	if ((rule->filters & RULE_PORTS) && (rule->filters & RULE_PROTO) &&
	    rule->proto != IPPROTO_UDP && rule->proto != IPPROTO_TCP)
		return "it matches ports of neither UDP nor TCP";
	return NULL;
}

/* Bits of an address behind its prefix are no part of what is matched. */
static void match_prefix(const struct rule_prefix *prefix, uint32_t *addr, uint32_t *mask)
{
	*mask = prefix->len == 0 ? 0 : htonl(UINT32_MAX << (32 - prefix->len));
	*addr = prefix->addr & *mask;
}

static void match_port(uint16_t port, uint16_t *value, uint16_t *mask)
{
	*value = htons(port);
	*mask = UINT16_MAX;
}

static void match_proto(uint8_t proto, struct rule_entry *entry)
{
	entry->proto = proto;
	entry->proto_mask = UINT8_MAX;
}

/* What all entries of a rule have in common: everything but the protocol. */
static struct rule_entry common_entry(const struct rule *rule)
{
	struct rule_entry entry = {
		.seq = rule->seq,
		.priority = rule->priority,
		.in_port = rule->in_port,
		.out_port = rule->out_port,
	};

	if (rule->filters & RULE_SRC_IP)
		match_prefix(&rule->src, &entry.src, &entry.src_mask);
	if (rule->filters & RULE_DST_IP)
		match_prefix(&rule->dst, &entry.dst, &entry.dst_mask);
	if (rule->filters & RULE_SRC_PORT)
		match_port(rule->src_port, &entry.src_port, &entry.src_port_mask);
	if (rule->filters & RULE_DST_PORT)
		match_port(rule->dst_port, &entry.dst_port, &entry.dst_port_mask);
	memcpy(entry.smac, rule->smac, sizeof(entry.smac));
	memcpy(entry.dmac, rule->dmac, sizeof(entry.dmac));
	return entry;
}

int rule_entries(const struct rule *rule, struct rule_entry entries[RULE_ENTRIES])
{
	entries[0] = common_entry(rule);
	if (rule->filters & RULE_PROTO) {
		match_proto(rule->proto, &entries[0]);
		return 1;
	}
	if (!(rule->filters & RULE_PORTS))
		return 1;

	entries[1] = entries[0];
	match_proto(IPPROTO_UDP, &entries[0]);
	match_proto(IPPROTO_TCP, &entries[1]);
	return 2;
}
