/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a rule of policy based routing asks of the hardware, without FRR's types
 * and without DOCA's: so it can be tested where neither is.
 */
#ifndef SLIPWAY_DOCA_RULE_H
#define SLIPWAY_DOCA_RULE_H

#include <stdbool.h>
#include <stdint.h>

/* What a rule matches. */
enum {
	RULE_SRC_IP = 1,
	RULE_DST_IP = 2,
	RULE_PROTO = 4,
	RULE_SRC_PORT = 8,
	RULE_DST_PORT = 16,
	RULE_OTHER = 32, /* DSCP, ECN, mark, VLAN: nothing of ours */
};

struct rule_prefix {
	uint8_t family; /* 4 or 6 */
	uint8_t len;
	uint32_t addr; /* of IPv4, in network order */
};

struct rule {
	uint32_t seq;
	uint32_t priority;
	uint32_t filters;
	struct rule_prefix src;
	struct rule_prefix dst;
	uint8_t proto;
	uint16_t src_port; /* in host order */
	uint16_t dst_port;
	bool in_known; /* the interface is one of DOCA's ports */
	bool out_known;
	uint16_t in_port;
	uint16_t out_port;
	uint8_t smac[6];
	uint8_t dmac[6];
};

/* What one entry of the hardware matches and does, in network order. */
struct rule_entry {
	uint32_t seq;
	uint32_t priority;
	uint16_t in_port; /* DOCA's numbers, in host order */
	uint16_t out_port;
	uint32_t src;
	uint32_t src_mask;
	uint32_t dst;
	uint32_t dst_mask;
	uint8_t proto;
	uint8_t proto_mask;
	uint16_t src_port;
	uint16_t src_port_mask;
	uint16_t dst_port;
	uint16_t dst_port_mask;
	uint8_t smac[6];
	uint8_t dmac[6];
};

/* Ports without a protocol are those of UDP, and of TCP. */
#define RULE_ENTRIES 2

/*
 * Why a rule stays the kernel's, or NULL. An entry that matched less than its
 * rule would divert packets that the rule leaves alone.
 */
const char *rule_refused(const struct rule *rule);

/* The entries of a rule that is not refused, and how many they are. */
int rule_entries(const struct rule *rule, struct rule_entry entries[RULE_ENTRIES]);

#endif
