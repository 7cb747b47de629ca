/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A switch of DOCA Flow: its ports, and the entries that move packets between
 * them. Knows nothing of FRR. Not for two threads at a time.
 */
#ifndef SLIPWAY_DOCA_OFFLOAD_H
#define SLIPWAY_DOCA_OFFLOAD_H

#include <stdarg.h>
#include <stddef.h>

#include "rule.h"

/* With the device, which is port 0. */
#define OFFLOAD_PORTS_MAX 64
#define OFFLOAD_COUNTERS_MAX (1 << 20)
#define OFFLOAD_NAME_SIZE 256 /* what DOCA wants for the name of an interface */

struct offload_settings {
	const char *names[OFFLOAD_PORTS_MAX]; /* of interfaces; the device's is the first */
	int ports;
	uint32_t counters;
};

struct offload_entry;

/* Tells what DOCA refused, and what to do. */
typedef void (*offload_report)(const char *format, va_list args);

/* Opens the device, starts its ports, and sends all packets to the kernel. */
bool offload_open(const struct offload_settings *settings, offload_report report);

/* Gives back everything, the entries too. */
void offload_close(void);

/* Returns NULL where DOCA did not take the entry, which was reported. */
struct offload_entry *offload_add(const struct rule_entry *rule);

/* Whether DOCA has taken the entry away; it is freed then. */
bool offload_remove(struct offload_entry *entry);

bool offload_count(struct offload_entry *entry, uint64_t *packets, uint64_t *bytes);

#endif
