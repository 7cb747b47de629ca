/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Stands for DOCA in tests, and is none: it moves no packet. It remembers what
 * it was asked for, keeps count of what is open, and refuses what it is told to.
 * It also refuses what DOCA is known to refuse, see fake.c.
 */
#ifndef CHECK_FAKE_H
#define CHECK_FAKE_H

#include <stdbool.h>
#include <stdint.h>

/* Forgets everything. Its interfaces are p0, the device's, pf0hpf and pf0vf0. */
void fake_reset(void);

/* The functions that were called since, one a line, with what they were given. */
const char *fake_calls(void);
void fake_forget_calls(void);

/* Makes a function fail from its nth call on. NULL: no function fails. */
void fake_fail(const char *function, int nth);

/*
 * The call after which the switch dropped packets that no rule matches, or NULL.
 * Without "isolated" a started port has no way to the kernel before there are
 * pipes. With it the kernel has all packets until there is a root pipe.
 */
const char *fake_dropped(void);

/* How many devices, ports, pipes, entries, lists and configurations are open. */
int fake_open(void);

/* What becomes of entries: DOCA says so only when it is asked to process them. */
enum fake_answer { FAKE_TAKES, FAKE_REFUSES, FAKE_IS_SILENT };
void fake_answer(enum fake_answer answer);

/* Has the last entry that was added count packets. */
void fake_packets(uint64_t packets, uint64_t bytes);

#endif
