/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A compile check, written from the public documentation of DOCA 3.3. It holds
 * only what the plugin uses, with values that are ours: that something compiles
 * against it proves nothing about DOCA, and nothing may be linked or shipped
 * with it.
 */
#ifndef CHECK_DOCA_ERROR_H
#define CHECK_DOCA_ERROR_H

typedef enum {
	DOCA_SUCCESS,
	DOCA_ERROR_NOT_FOUND,
	DOCA_ERROR_NO_MEMORY,
	DOCA_ERROR_TIME_OUT,
	DOCA_ERROR_DRIVER,
	DOCA_ERROR_INVALID_VALUE,
} doca_error_t;

const char *doca_error_get_descr(doca_error_t error);

#endif
