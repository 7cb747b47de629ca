/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rules of a software eSwitch: what of a frame they look at, which rule a
 * frame falls to, and what that rule does to it. No DPDK and no sockets here,
 * so that all of it is tested on any machine.
 */
#ifndef SWFLOW_H
#define SWFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/queue.h>

#define SW_MAC_LEN 6

/* The headers that a frame has, or that a rule asks for. */
enum sw_layer {
	SW_ETH = 1 << 0,
	SW_VLAN = 1 << 1,
	SW_IPV4 = 1 << 2,
	SW_UDP = 1 << 3,
	SW_TCP = 1 << 4,
};

/*
 * What rules can compare, each number in the byte order of the wire. A rule
 * holds two of these, values and masks; compared are bytes, so that a new
 * field needs no new comparison. Therefore no byte of it may be padding.
 */
struct sw_fields {
	uint8_t eth_dst[SW_MAC_LEN];
	uint8_t eth_src[SW_MAC_LEN];
	uint8_t eth_type[2];
	uint8_t vlan_tci[2];
	uint8_t vlan_type[2];
	uint8_t ip_tos;
	uint8_t ip_ttl;
	uint8_t ip_proto;
	uint8_t ip_src[4];
	uint8_t ip_dst[4];
	uint8_t l4_src[2];
	uint8_t l4_dst[2];
};

/* A frame taken apart. ip_at is where its IPv4 header begins, 0 for none. */
struct sw_frame {
	uint32_t layers;
	struct sw_fields fields;
	size_t ip_at;
};

/*
 * Takes a frame apart. A header that is cut, or that contradicts itself, is
 * not there, and neither is what follows it. A fragment of an IPv4 packet has
 * no layer 4: of all its fragments only the first one carries the ports, and
 * they must not take two ways.
 */
void sw_dissect(const uint8_t *data, size_t len, struct sw_frame *frame);

enum sw_fate {
	SW_FORWARD = 1,
	SW_DROP,
	SW_QUEUE,
	SW_JUMP,
};

struct sw_rule {
	TAILQ_ENTRY(sw_rule) next;
	uint32_t id;
	/* A rule of the switch, or of what the switch leaves to the port's own receiver. */
	bool transfer;
	uint32_t group;
	uint32_t priority;
	uint32_t layers;
	struct sw_fields spec;
	struct sw_fields mask;
	enum sw_fate fate;
	uint16_t out_port;
	uint32_t jump; /* to a higher group, so that no frame goes round for ever */
	bool dec_ttl;
	bool set_src;
	bool set_dst;
	bool count;
	uint8_t new_src[SW_MAC_LEN];
	uint8_t new_dst[SW_MAC_LEN];
	uint64_t hits;
	uint64_t bytes;
};

/* The rules of one port, in the order in which a frame is held against them. */
struct sw_table {
	TAILQ_HEAD(sw_rules, sw_rule) rules;
	uint32_t last_id;
};

void sw_table_init(struct sw_table *table);

/* Lower numbers of priority come first, and of equal ones the older rule. */
void sw_table_add(struct sw_table *table, struct sw_rule *rule);
bool sw_table_has(const struct sw_table *table, const struct sw_rule *rule);
void sw_table_remove(struct sw_table *table, struct sw_rule *rule);

/*
 * Finds the rule that a frame falls to, of those with or without the attribute
 * transfer, beginning in group 0. Counts the frame there as it came, and in the
 * rules that it jumped by, and rewrites it. NULL is the slow path: no rule of the
 * group matches, or the first one that does would send a packet on whose time to
 * live is over. Such a packet is unchanged, and that rule does not count it, as
 * somebody has to answer it.
 */
struct sw_rule *sw_table_apply(struct sw_table *table, bool transfer, uint8_t *data, size_t len);

/* Reads a rule's counters, and sets them to zero if asked. */
void sw_rule_read(struct sw_rule *rule, bool reset, uint64_t *hits, uint64_t *bytes);

/* Prints a rule as one line, in words that testpmd's flow create understands. */
void sw_rule_print(FILE *out, const char *port, const struct sw_rule *rule);

#endif
