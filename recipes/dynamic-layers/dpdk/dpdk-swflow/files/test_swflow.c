/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tests of the switch's rules and of its packets, without DPDK. Prints one
 * line for each, as a ptest does, and ends with 1 if any has failed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packet.h"
#include "swflow.h"

static const char *test;
static bool test_failed;
static bool any_failed;

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s: ", test);
	vprintf(format, args);
	printf("\n");
	va_end(args);
	test_failed = true;
}

/* A frame under construction: an IPv4 packet to port 53, until changed. */
struct build {
	int tags;
	uint16_t tag_type;
	uint8_t ihl;
	uint8_t version;
	uint8_t ttl;
	uint8_t proto;
	uint16_t fragment;
	uint16_t dport;
	int total_more;
	size_t payload;
	size_t padding;
	size_t cut;
};

static const struct build dns = {
	.tag_type = 0x8100, .ihl = 5, .version = 4, .ttl = 64, .proto = 17, .dport = 53, .payload = 30,
};

static void put16(uint8_t *at, unsigned int value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static uint16_t ip_sum(const uint8_t *ip)
{
	size_t i, header = (size_t)(ip[0] & 15) * 4;
	uint32_t sum = 0;

	for (i = 0; i < header; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* Each frame has memory of just its size, so that a sanitizer sees every step beyond it. */
static uint8_t *build(const struct build *how, size_t *len)
{
	size_t l4 = how->proto == 6 ? 20 : 8;
	size_t ip_len = (size_t)how->ihl * 4 + l4 + how->payload;
	size_t at = 14 + 4 * (size_t)how->tags;
	uint8_t *frame = calloc(1, at + ip_len + how->padding + 64);
	uint8_t *ip = frame + at;
	int i;

	memcpy(frame, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02", 12);
	for (i = 0; i < how->tags; i++) {
		put16(frame + 12 + 4 * i, how->tag_type);
		put16(frame + 14 + 4 * i, 7);
	}
	put16(frame + at - 2, 0x0800);
	ip[0] = (uint8_t)(how->version << 4 | how->ihl);
	put16(ip + 2, (unsigned int)((int)ip_len + how->total_more));
	put16(ip + 6, how->fragment);
	ip[8] = how->ttl;
	ip[9] = how->proto;
	memcpy(ip + 12, "\xc0\x00\x02\x02\xc6\x33\x64\x01", 8);
	if (how->ihl >= 5) {
		put16(ip + 10, ip_sum(ip));
		put16(ip + how->ihl * 4, 40000);
		put16(ip + how->ihl * 4 + 2, how->dport);
	}
	*len = at + ip_len + how->padding - how->cut;
	return realloc(frame, *len ? *len : 1);
}

/* The rule of the post: from one subnet, to UDP port 53, by another next hop. */
static struct sw_rule post_rule(void)
{
	struct sw_rule rule = {
		.transfer = true,
		.layers = SW_ETH | SW_IPV4 | SW_UDP,
		.fate = SW_FORWARD,
		.out_port = 1,
		.dec_ttl = true,
		.set_src = true,
		.set_dst = true,
		.count = true,
		.new_src = { 2, 0, 0, 0, 0, 0x11 },
		.new_dst = { 2, 0, 0, 0, 0, 0x22 },
	};

	memcpy(rule.spec.ip_src, "\xc0\x00\x02\x00", 4);
	memcpy(rule.mask.ip_src, "\xff\xff\xff\x00", 4);
	put16(rule.spec.l4_dst, 53);
	put16(rule.mask.l4_dst, 0xffff);
	return rule;
}

static void test_matches(void)
{
	struct build with;
	const struct {
		const char *name;
		struct build how;
		bool taken;
	} cases[] = {
#define CASE(name, taken, ...) { name, (with = dns, __VA_ARGS__, with), taken }
		CASE("dns", true, with.ttl = 64),
		CASE("another port", false, with.dport = 54),
		CASE("tcp to the same port", false, with.proto = 6),
		CASE("icmp", false, with.proto = 1),
		CASE("ip options", true, with.ihl = 8),
		CASE("longest header", true, with.ihl = 15),
		CASE("header shorter than any", false, with.ihl = 4),
		CASE("header of no length", false, with.ihl = 0),
		CASE("version 6 in an ipv4 frame", false, with.version = 6),
		CASE("padded frame", true, with.padding = 18),
		CASE("don't fragment", true, with.fragment = 0x4000),
		CASE("first fragment", false, with.fragment = 0x2000),
		CASE("middle fragment", false, with.fragment = 0x2001),
		CASE("last fragment", false, with.fragment = 0x00b9),
		CASE("one tag", false, with.tags = 1),
		CASE("two tags", false, with.tags = 2),
		CASE("length beyond the frame", false, with.total_more = 1),
		CASE("length within the ip header", false, with.total_more = -39),
		CASE("length within the udp header", false, with.total_more = -31),
		CASE("length of headers alone", true, with.total_more = -30),
		CASE("ttl of 2", true, with.ttl = 2),
		CASE("ttl of 1", false, with.ttl = 1),
		CASE("ttl of 0", false, with.ttl = 0),
#undef CASE
	};
	size_t i, len;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sw_rule rule = post_rule();
		struct sw_table table;
		uint8_t *frame = build(&cases[i].how, &len);
		uint8_t *before = malloc(len);
		bool taken;

		memcpy(before, frame, len);
		sw_table_init(&table);
		sw_table_add(&table, &rule);
		taken = sw_table_apply(&table, true, frame, len) == &rule;
		if (taken != cases[i].taken)
			fail("%s: the rule takes it: %d; want %d", cases[i].name, taken, cases[i].taken);
		if (!taken && memcmp(before, frame, len))
			fail("%s: a frame of the slow path was changed", cases[i].name);
		if (rule.hits != (uint64_t)taken || rule.bytes != (taken ? len : 0))
			fail("%s: counted %d hits, %d bytes", cases[i].name, (int)rule.hits, (int)rule.bytes);
		free(before);
		free(frame);
	}
}

static void test_rewrite(void)
{
	struct build how = dns;
	int ttl, ihl;
	size_t len;

	for (ihl = 5; ihl <= 15; ihl += 5) {
		for (ttl = 2; ttl <= 255; ttl++) {
			struct sw_rule rule = post_rule();
			struct sw_table table;
			uint8_t *frame, *want;

			how.ihl = (uint8_t)ihl;
			how.ttl = (uint8_t)(ttl - 1);
			want = build(&how, &len);
			memcpy(want, rule.new_dst, 6);
			memcpy(want + 6, rule.new_src, 6);
			how.ttl = (uint8_t)ttl;
			frame = build(&how, &len);
			sw_table_init(&table);
			sw_table_add(&table, &rule);
			sw_table_apply(&table, true, frame, len);
			/* A sum of all ones and one of none are the same number, so sums are compared as such. */
			if (ip_sum(frame + 14) != 0)
				fail("ttl %d, header of %d words: checksum is wrong", ttl, ihl);
			memcpy(frame + 24, want + 24, 2);
			if (memcmp(frame, want, len))
				fail("ttl %d, header of %d words: frame differs from the one wanted", ttl, ihl);
			free(frame);
			free(want);
		}
	}
}

static void test_wrong_checksum_stays_wrong(void)
{
	struct sw_rule rule = post_rule();
	struct sw_table table;
	size_t len;
	uint8_t *frame = build(&dns, &len);

	frame[24] ^= 0x40;
	sw_table_init(&table);
	sw_table_add(&table, &rule);
	sw_table_apply(&table, true, frame, len);
	if (ip_sum(frame + 14) == 0)
		fail("a damaged header came out with a right checksum");
	free(frame);
}

static void test_cut_frames(void)
{
	struct build how = dns;
	size_t whole, len;
	uint8_t *frame = build(&dns, &whole);

	free(frame);
	for (how.tags = 0; how.tags <= 1; how.tags++) {
		for (how.cut = 0; how.cut <= whole; how.cut++) {
			struct sw_rule rule = post_rule();
			struct sw_table table;

			rule.layers |= how.tags ? SW_VLAN : 0;
			frame = build(&how, &len);
			sw_table_init(&table);
			sw_table_add(&table, &rule);
			if ((sw_table_apply(&table, true, frame, len) != NULL) != (how.cut == 0))
				fail("frame cut by %d bytes, %d tags: taken or not, the other was right",
				     (int)how.cut, how.tags);
			free(frame);
		}
	}
}

static void test_vlan(void)
{
	struct sw_rule rule = post_rule();
	struct build how = dns;
	struct sw_table table;
	uint8_t *frame;
	size_t len;

	rule.layers |= SW_VLAN;
	put16(rule.spec.vlan_tci, 7);
	put16(rule.mask.vlan_tci, 0x0fff);
	sw_table_init(&table);
	sw_table_add(&table, &rule);
	how.tags = 1;
	frame = build(&how, &len);
	if (!sw_table_apply(&table, true, frame, len) || frame[18 + 8] != 63 || ip_sum(frame + 18) != 0)
		fail("a frame with the tag of the rule was not taken and rewritten");
	free(frame);
	frame = build(&dns, &len);
	if (sw_table_apply(&table, true, frame, len))
		fail("a frame without a tag was taken");
	free(frame);
	frame = build(&how, &len);
	frame[15] = 8;
	if (sw_table_apply(&table, true, frame, len))
		fail("a frame with another tag was taken");
	free(frame);
	rule.layers = SW_ETH;
	memset(&rule.mask, 0, sizeof(rule.mask));
	rule.dec_ttl = false;
	frame = build(&how, &len);
	if (!sw_table_apply(&table, true, frame, len))
		fail("a rule for all frames has not taken one with a tag");
	free(frame);
}

static void test_order(void)
{
	const uint32_t priorities[] = { 5, 0, 5, 3, 0 };
	const uint32_t want[] = { 2, 5, 4, 1, 3 };
	struct sw_rule rules[5], *rule;
	struct sw_table table;
	size_t i, len;
	uint8_t *frame = build(&dns, &len);

	sw_table_init(&table);
	for (i = 0; i < 5; i++) {
		rules[i] = post_rule();
		rules[i].priority = priorities[i];
		rules[i].fate = SW_DROP;
		sw_table_add(&table, &rules[i]);
	}
	for (i = 0; i < 5; i++) {
		rule = sw_table_apply(&table, true, frame, len);
		if (!rule || rule->id != want[i]) {
			fail("rule %d in turn is %d; want %d", (int)i, rule ? (int)rule->id : 0, (int)want[i]);
			break;
		}
		sw_table_remove(&table, rule);
		if (sw_table_has(&table, rule))
			fail("rule %d is still there after its removal", (int)rule->id);
	}
	if (sw_table_apply(&table, true, frame, len))
		fail("an empty table has taken a frame");
	free(frame);
}

static bool takes(struct sw_table *table, bool transfer, const struct sw_rule *want)
{
	size_t len;
	uint8_t *frame = build(&dns, &len);
	bool right = sw_table_apply(table, transfer, frame, len) == want;

	free(frame);
	return right;
}

/* A frame goes from group to group by jumps alone, and each rule on its way counts it. */
static void test_groups(void)
{
	struct sw_rule first = { .transfer = true, .layers = SW_ETH, .fate = SW_JUMP, .jump = 1 };
	struct sw_rule second = { .transfer = true, .group = 1, .priority = 9, .layers = SW_IPV4, .fate = SW_JUMP,
				  .jump = 7 };
	struct sw_rule rule = post_rule();
	struct sw_table table;

	rule.group = 7;
	sw_table_init(&table);
	sw_table_add(&table, &rule);
	sw_table_add(&table, &second);
	if (!takes(&table, true, NULL))
		fail("a rule was taken that nothing jumps to");
	sw_table_add(&table, &first);
	if (!takes(&table, true, &rule) || first.hits != 1 || second.hits != 1 || rule.hits != 1)
		fail("two jumps: %d, %d and %d hits; want 1 each", (int)first.hits, (int)second.hits, (int)rule.hits);
	sw_table_remove(&table, &rule);
	if (!takes(&table, true, NULL) || first.hits != 2)
		fail("a group without a rule for the frame is not the slow path");
	first.jump = 2;
	if (!takes(&table, true, NULL) || second.hits != 2)
		fail("a jump has not left group 1 out");
}

/* Rules with and without transfer do not see each other's frames, nor each other's groups. */
static void test_ingress(void)
{
	struct sw_rule ingress = { .layers = SW_UDP, .fate = SW_QUEUE };
	struct sw_rule jump = { .priority = 1, .layers = SW_ETH, .fate = SW_JUMP, .jump = 1 };
	struct sw_rule rule = post_rule();
	struct sw_table table;

	rule.group = 1;
	sw_table_init(&table);
	sw_table_add(&table, &ingress);
	sw_table_add(&table, &rule);
	sw_table_add(&table, &jump);
	if (!takes(&table, true, NULL))
		fail("the switch has taken a rule without transfer");
	if (!takes(&table, false, &ingress) || ingress.hits != 1)
		fail("a rule without transfer was not taken");
	sw_table_remove(&table, &ingress);
	if (!takes(&table, false, NULL))
		fail("a jump without transfer has led to a rule of the switch");
}

static void test_counters(void)
{
	struct sw_rule rule = post_rule();
	struct sw_table table;
	uint64_t hits, bytes;
	size_t len;
	uint8_t *frame = build(&dns, &len);
	int i;

	rule.fate = SW_DROP;
	sw_table_init(&table);
	sw_table_add(&table, &rule);
	for (i = 0; i < 22; i++)
		sw_table_apply(&table, true, frame, len);
	sw_rule_read(&rule, false, &hits, &bytes);
	if (hits != 22 || bytes != 22 * len)
		fail("hits %d, bytes %d; want 22, %d", (int)hits, (int)bytes, (int)(22 * len));
	sw_rule_read(&rule, true, &hits, &bytes);
	if (hits != 22)
		fail("hits %d while reset; want 22", (int)hits);
	sw_rule_read(&rule, false, &hits, &bytes);
	if (hits || bytes)
		fail("hits %d, bytes %d after reset; want none", (int)hits, (int)bytes);
	free(frame);
}

static void expect_line(const struct sw_rule *rule, const char *want)
{
	char *line = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&line, &size);

	sw_rule_print(out, "net_swflow0", rule);
	fclose(out);
	if (strcmp(line, want))
		fail("printed %swant    %s", line, want);
	free(line);
}

static void test_print(void)
{
	struct sw_rule rule = post_rule();
	struct sw_rule drop = { .id = 9, .group = 2, .layers = SW_ETH | SW_VLAN | SW_IPV4 | SW_TCP, .fate = SW_DROP };

	rule.id = 1;
	rule.hits = 22;
	rule.bytes = 2332;
	expect_line(&rule, "net_swflow0: software rule 1: group 0 priority 0 ingress transfer pattern eth / ipv4"
		    " src spec 192.0.2.0 src mask 255.255.255.0 / udp dst is 53 / end actions dec_ttl"
		    " / set_mac_src mac_addr 02:00:00:00:00:11 / set_mac_dst mac_addr 02:00:00:00:00:22"
		    " / port_id id 1 / count / end: 22 hits, 2332 bytes\n");
	drop.priority = 4;
	memset(drop.mask.eth_dst, 0xff, 6);
	drop.spec.ip_ttl = 64;
	drop.mask.ip_ttl = 0xff;
	put16(drop.spec.vlan_tci, 7);
	put16(drop.mask.vlan_tci, 0x0fff);
	put16(drop.spec.l4_src, 1024);
	put16(drop.mask.l4_src, 0xfc00);
	expect_line(&drop, "net_swflow0: software rule 9: group 2 priority 4 ingress pattern"
		    " eth dst is 00:00:00:00:00:00 / vlan tci spec 0x0007 tci mask 0x0fff / ipv4 ttl is 64"
		    " / tcp src spec 1024 src mask 0xfc00 / end actions drop / end: 0 hits, 0 bytes\n");
}

/* Noise, and frames with some bytes of noise: nothing may be read beyond the end. */
static void test_damaged(void)
{
	struct build how = dns;
	unsigned int seed = 7;
	size_t len, i;
	int round;

	for (round = 0; round < 50000; round++) {
		struct sw_rule rule = post_rule();
		struct sw_table table;
		uint8_t *frame;

		how.tags = round % 3;
		how.cut = (size_t)rand_r(&seed) % 40;
		frame = build(&how, &len);
		for (i = 0; i < 4; i++)
			frame[(size_t)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
		if (round % 5 == 0)
			rule.layers = SW_ETH;
		sw_table_init(&table);
		sw_table_add(&table, &rule);
		sw_table_apply(&table, true, frame, len);
		if (rule.hits > 1 || rule.bytes > len)
			fail("round %d: counted more than the frame", round);
		free(frame);
	}
}

static void test_open_checksum(void)
{
	/* The sum of the pseudo header stands where the checksum shall be, as the kernel leaves it. */
	static struct packet packet;
	const uint8_t udp[] = { 0x9c, 0x40, 0, 53, 0, 11, 0x12, 0x34, 'a', 'b', 'c' };

	packet.data = packet.room;
	packet.len = sizeof(udp);
	memcpy(packet.data, udp, sizeof(udp));
	packet.offload.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
	packet.offload.csum_offset = 6;
	if (!packet_finish_checksum(&packet) || packet.data[6] != 0x8c || packet.data[7] != 0xe8)
		fail("checksum %02x%02x; want 8ce8", packet.data[6], packet.data[7]);
	if (packet.offload.flags)
		fail("the packet still says that its checksum is open");
	packet.offload.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
	packet.offload.csum_start = 5;
	if (packet_finish_checksum(&packet))
		fail("a checksum that ends beyond the frame was written");
}

static void run(const char *name, void (*function)(void))
{
	test = name;
	test_failed = false;
	function();
	printf("%s: %s\n", test_failed ? "FAIL" : "PASS", name);
	any_failed = any_failed || test_failed;
}

int main(void)
{
	run("matches", test_matches);
	run("rewrite", test_rewrite);
	run("wrong_checksum_stays_wrong", test_wrong_checksum_stays_wrong);
	run("cut_frames", test_cut_frames);
	run("vlan", test_vlan);
	run("order", test_order);
	run("groups", test_groups);
	run("ingress", test_ingress);
	run("counters", test_counters);
	run("print", test_print);
	run("damaged", test_damaged);
	run("open_checksum", test_open_checksum);
	return any_failed;
}
