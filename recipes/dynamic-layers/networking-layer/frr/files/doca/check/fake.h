/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Stands for DOCA in tests, and is none: it moves no packet. It remembers what
 * it was asked for, keeps count of what is open, and refuses what it is told to.
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

/* Has a function fail from now on, or none. */
void fake_fail(const char *function);

/* How many devices, ports, pipes, entries, lists and configurations are open. */
int fake_open(void);

/* What becomes of entries: DOCA says so only when it is asked to process them. */
enum fake_answer { FAKE_TAKES, FAKE_REFUSES, FAKE_IS_SILENT };
void fake_answer(enum fake_answer answer);

/* Has the last entry that was added count packets. */
void fake_packets(uint64_t packets, uint64_t bytes);

#endif
