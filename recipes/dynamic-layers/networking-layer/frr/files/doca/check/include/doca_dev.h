/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A compile check, written from the public documentation of DOCA 3.3. It holds
 * only what the plugin uses, with values that are ours: that something compiles
 * against it proves nothing about DOCA, and nothing may be linked or shipped
 * with it.
 */
#ifndef CHECK_DOCA_DEV_H
#define CHECK_DOCA_DEV_H

#include <doca_error.h>
#include <stdint.h>

#define DOCA_DEVINFO_IFACE_NAME_SIZE 256

enum doca_devinfo_rep_filter {
	DOCA_DEVINFO_REP_FILTER_ALL,
	DOCA_DEVINFO_REP_FILTER_NET = 1 << 1,
};

struct doca_dev;
struct doca_dev_rep;
struct doca_devinfo;
struct doca_devinfo_rep;

doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count);
doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **list);
doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *info, char *name, uint32_t size);
doca_error_t doca_dev_open(struct doca_devinfo *info, struct doca_dev **device);
doca_error_t doca_dev_close(struct doca_dev *device);

doca_error_t doca_devinfo_rep_create_list(struct doca_dev *device, int filter, struct doca_devinfo_rep ***list,
					  uint32_t *count);
doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **list);
doca_error_t doca_devinfo_rep_get_iface_name(const struct doca_devinfo_rep *info, char *name, uint32_t size);
doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *info, struct doca_dev_rep **representor);
doca_error_t doca_dev_rep_close(struct doca_dev_rep *representor);

#endif
