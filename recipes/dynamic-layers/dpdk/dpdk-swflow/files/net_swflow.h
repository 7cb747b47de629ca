/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the two halves of the driver share: ethdev.c, its ports, and flow.c,
 * its rules.
 */
#ifndef NET_SWFLOW_H
#define NET_SWFLOW_H

#include <ethdev_driver.h>
#include <net/if.h>
#include <pthread.h>
#include <rte_flow_driver.h>
#include <rte_log.h>

#include "packet.h"
#include "swflow.h"

/* An end of a port: an interface, and while the port runs a socket on it. */
struct swport_end {
	char name[IFNAMSIZ];
	unsigned int ifindex;
	int fd;
};

struct swport {
	struct rte_eth_dev_data *data;
	struct rte_ether_addr mac;
	/* The representor that the kernel and others know this port by. */
	struct swport_end iface;
	/* With both of these the driver is the switch between them. */
	struct swport_end kernel;
	struct swport_end wire;
	bool is_switch;
	bool isolated;
	bool running;
	int wake;
	pthread_t thread;
	struct sw_table table;
	struct rte_eth_stats stats;
	struct rte_mempool *pool;
	struct rte_ring *received;
	struct packet packet;
};

/*
 * One lock for all ports: a rule of one sends out of another one, and neither
 * may go meanwhile. It makes every counter exact at the moment it is read.
 */
extern pthread_mutex_t swflow_lock;

extern int swflow_log;
#define SWFLOW_LOG(level, ...) rte_log(RTE_LOG_##level, swflow_log, "net_swflow: " __VA_ARGS__)

extern const struct rte_flow_ops swflow_flow_ops;

/* The port of this driver with a DPDK port id, or NULL; call it with the lock held. */
struct swport *swflow_port(uint32_t port_id);

/* Removes all rules of a port; call it with the lock held. */
void swflow_remove_rules(struct swport *port);

#endif
