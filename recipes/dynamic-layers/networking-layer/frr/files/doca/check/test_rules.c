/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Holds the translation of rules against a file of them, named as the only
 * argument, and prints the line of each that comes out differently. Ends with 0
 * if there is none, and at least one rule was read.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../rule.h"

#define LINE_MAX_BYTES 512

/* The ports and addresses of all rules of the file. */
static const struct rule ordinary = {
	.seq = 10,
	.priority = 305,
	.in_known = true,
	.out_known = true,
	.in_port = 2,
	.out_port = 1,
	.smac = { 2, 0, 0, 0, 0, 1 },
	.dmac = { 2, 0, 0, 0, 0, 2 },
};

static char *trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

static bool read_number(const char *text, unsigned long most, unsigned long *value)
{
	char *end;

	*value = strtoul(text, &end, 10);
	return isdigit((unsigned char)*text) && *end == '\0' && *value <= most;
}

static bool read_prefix(char *text, struct rule_prefix *prefix)
{
	char *slash = strchr(text, '/');
	unsigned char ipv6[16];
	unsigned long len;

	if (!slash)
		return false;
	*slash = '\0';
	prefix->family = strchr(text, ':') ? 6 : 4;
	if (!read_number(slash + 1, prefix->family == 6 ? 128 : 32, &len))
		return false;
	prefix->len = (uint8_t)len;
	if (prefix->family == 6)
		return inet_pton(AF_INET6, text, ipv6) == 1;
	return inet_pton(AF_INET, text, &prefix->addr) == 1;
}

static bool read_port(const char *text, uint16_t *port)
{
	unsigned long value;

	if (!read_number(text, UINT16_MAX, &value))
		return false;
	*port = (uint16_t)value;
	return true;
}

static bool read_proto(const char *text, uint8_t *proto)
{
	static const struct {
		const char *name;
		uint8_t number;
	} known[] = { { "icmp", 1 }, { "tcp", 6 }, { "udp", 17 }, { "gre", 47 } };
	size_t i;

	for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(text, known[i].name) == 0) {
			*proto = known[i].number;
			return true;
		}
	}
	return false;
}

static bool is_one_of(const char *word, const char *const words[], size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (strcmp(word, words[i]) == 0)
			return true;
	}
	return false;
}

/* One command of a pbr-map: "match WHAT VALUE". */
static bool read_match(char *command, struct rule *rule)
{
	static const char *const others[] = { "dscp", "ecn", "mark", "vlan", "pcp" };
	char what[16], value[64];

	if (sscanf(command, "match %15s %63s", what, value) != 2)
		return false;
	if (is_one_of(what, others, sizeof(others) / sizeof(others[0]))) {
		rule->filters |= RULE_OTHER;
		return true;
	}
	if (strcmp(what, "src-ip") == 0) {
		rule->filters |= RULE_SRC_IP;
		return read_prefix(value, &rule->src);
	}
	if (strcmp(what, "dst-ip") == 0) {
		rule->filters |= RULE_DST_IP;
		return read_prefix(value, &rule->dst);
	}
	if (strcmp(what, "src-port") == 0) {
		rule->filters |= RULE_SRC_PORT;
		return read_port(value, &rule->src_port);
	}
	if (strcmp(what, "dst-port") == 0) {
		rule->filters |= RULE_DST_PORT;
		return read_port(value, &rule->dst_port);
	}
	rule->filters |= RULE_PROTO;
	return strcmp(what, "ip-protocol") == 0 && read_proto(value, &rule->proto);
}

static bool read_state(const char *state, struct rule *rule)
{
	if (strcmp(state, "foreign-in") == 0)
		rule->in_known = false;
	else if (strcmp(state, "foreign-out") == 0)
		rule->out_known = false;
	else if (strcmp(state, "unresolved") == 0)
		memset(rule->dmac, 0, sizeof(rule->dmac));
	else if (strcmp(state, "back") == 0)
		rule->out_port = rule->in_port;
	else
		return *state == '\0' || strcmp(state, "kernel-refuses") == 0 || strcmp(state, "releases-differ") == 0;
	return true;
}

static bool read_rule(char *commands, const char *state, struct rule *rule)
{
	char *command, *rest = NULL;

	*rule = ordinary;
	for (command = strtok_r(commands, ";", &rest); command; command = strtok_r(NULL, ";", &rest)) {
		if (!read_match(trim(command), rule))
			return false;
	}
	return read_state(state, rule);
}

/* An address as the file writes it, with the port if one is looked at. */
static void print_end(FILE *out, uint32_t addr, uint32_t mask, uint16_t port, uint16_t port_mask)
{
	char text[INET_ADDRSTRLEN];

	if (mask == 0 && addr == 0)
		fprintf(out, "any");
	else
		fprintf(out, "%s/%d", inet_ntop(AF_INET, &addr, text, sizeof(text)), __builtin_popcount(mask));
	if (port_mask == UINT16_MAX)
		fprintf(out, ":%u", ntohs(port));
	else if (port_mask != 0 || port != 0)
		fprintf(out, ":%u&%u", ntohs(port), ntohs(port_mask));
}

static void print_proto(FILE *out, const struct rule_entry *entry)
{
	if (entry->proto_mask == 0 && entry->proto == 0)
		fprintf(out, "any ");
	else if (entry->proto_mask != UINT8_MAX)
		fprintf(out, "%u&%u ", entry->proto, entry->proto_mask);
	else if (entry->proto == 17)
		fprintf(out, "udp ");
	else if (entry->proto == 6)
		fprintf(out, "tcp ");
	else
		fprintf(out, "%u ", entry->proto);
}

/* A mask whose ones do not all come first is no prefix's. */
static bool is_prefix_mask(uint32_t mask)
{
	uint32_t host = ~ntohl(mask);

	return (host & (host + 1)) == 0;
}

static void print_entry(FILE *out, const struct rule *rule, const struct rule_entry *entry)
{
	print_proto(out, entry);
	print_end(out, entry->src, entry->src_mask, entry->src_port, entry->src_port_mask);
	fprintf(out, " to ");
	print_end(out, entry->dst, entry->dst_mask, entry->dst_port, entry->dst_port_mask);
	if (!is_prefix_mask(entry->src_mask) || !is_prefix_mask(entry->dst_mask))
		fprintf(out, " (a mask with holes)");
	if (entry->in_port != rule->in_port || entry->out_port != rule->out_port)
		fprintf(out, " (from port %u to %u)", entry->in_port, entry->out_port);
	if (memcmp(entry->smac, rule->smac, 6) != 0 || memcmp(entry->dmac, rule->dmac, 6) != 0)
		fprintf(out, " (other addresses)");
	if (entry->seq != rule->seq || entry->priority != rule->priority)
		fprintf(out, " (sequence %u, priority %u)", entry->seq, entry->priority);
}

/* What comes of a rule, as the file writes it. */
static void print_outcome(FILE *out, const struct rule *rule)
{
	struct rule_entry entries[RULE_ENTRIES];
	const char *refused = rule_refused(rule);
	int i, count;

	if (refused) {
		fprintf(out, "kernel: %s", refused);
		return;
	}
	/* What the translation leaves as it was shows. */
	memset(entries, 0xa5, sizeof(entries));
	count = rule_entries(rule, entries);
	for (i = 0; i < count; i++) {
		fprintf(out, "%s", i ? ", " : "");
		print_entry(out, rule, &entries[i]);
	}
}

/* Prints what is wrong with a line, and says whether nothing is. */
static bool check_line(const char *file, int number, char *line)
{
	char *state = strchr(line, '|');
	char *wanted = state ? strchr(state + 1, '|') : NULL;
	char got[LINE_MAX_BYTES] = "";
	struct rule rule;
	FILE *out;

	if (!wanted) {
		printf("%s:%d: want a rule, its state and what comes of it, with | between\n", file, number);
		return false;
	}
	*state++ = '\0';
	*wanted++ = '\0';
	if (!read_rule(line, trim(state), &rule)) {
		printf("%s:%d: no rule that this test can read\n", file, number);
		return false;
	}
	out = fmemopen(got, sizeof(got), "w");
	if (!out)
		return false;
	print_outcome(out, &rule);
	fclose(out);
	if (strcmp(got, trim(wanted)) == 0)
		return true;
	printf("%s:%d: want %s\n  got %s\n", file, number, trim(wanted), got);
	return false;
}

/* How many rules a file has, or -1 if one of them comes out differently. */
static int check_file(const char *name, FILE *file)
{
	char line[LINE_MAX_BYTES];
	bool right = true;
	int number = 0, rules = 0;

	while (fgets(line, sizeof(line), file)) {
		number++;
		if (!strchr(line, '\n')) {
			printf("%s:%d: longer than %d bytes, or without an end\n", name, number, LINE_MAX_BYTES - 2);
			return -1;
		}
		if (*trim(line) == '\0' || *trim(line) == '#')
			continue;
		rules++;
		if (!check_line(name, number, line))
			right = false;
	}
	return right ? rules : -1;
}

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
	int rules;

	if (!file) {
		fprintf(stderr, "usage: test_rules FILE\n");
		return 2;
	}
	rules = check_file(argv[1], file);
	fclose(file);
	if (rules <= 0)
		return 1;
	printf("%d rules translated as they should be\n", rules);
	return 0;
}
