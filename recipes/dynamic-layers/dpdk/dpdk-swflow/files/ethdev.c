/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver's ports: where frames come from, and which way they go. */
#define _GNU_SOURCE
#include <errno.h>
#include <ethdev_vdev.h>
#include <poll.h>
#include <rte_kvargs.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "net_swflow.h"

#define TX_QUEUES 16
#define RING_MIN 64
/* So many frames of one end before the other end has its turn. */
#define BURST 64

static const char *const arguments[] = { "iface", "switch", "wire", NULL };

pthread_mutex_t swflow_lock = PTHREAD_MUTEX_INITIALIZER;
static struct swport *ports[RTE_MAX_ETHPORTS];

RTE_LOG_REGISTER(swflow_log, pmd.net.swflow, NOTICE)

struct swport *swflow_port(uint32_t port_id)
{
	return port_id < RTE_MAX_ETHPORTS ? ports[port_id] : NULL;
}

/* Where a port's frames come in from outside and go out to it. */
static struct swport_end *outside(struct swport *port)
{
	return port->is_switch ? &port->wire : &port->iface;
}

static void count_sent(struct swport *port, size_t len, int rc)
{
	if (rc < 0) {
		port->stats.oerrors++;
		return;
	}
	port->stats.opackets++;
	port->stats.obytes += len;
}

/* A port that was stopped since its rule was made has no socket to send by. */
static void send_out(struct swport *port, const struct packet *packet)
{
	int rc = port && port->running ? packet_write(outside(port)->fd, packet) : -ENETDOWN;

	if (port)
		count_sent(port, packet->len, rc);
}

/* Hands a frame to the application. */
static void receive(struct swport *port, struct packet *packet)
{
	struct rte_mbuf *mbuf;

	if (!port->received)
		return;
	if (packet->offload.gso_type != VIRTIO_NET_HDR_GSO_NONE || !packet_finish_checksum(packet)) {
		port->stats.ierrors++;
		return;
	}
	mbuf = rte_pktmbuf_alloc(port->pool);
	if (!mbuf) {
		port->data->rx_mbuf_alloc_failed++;
		return;
	}
	if (packet->len > rte_pktmbuf_tailroom(mbuf)) {
		port->stats.ierrors++;
		rte_pktmbuf_free(mbuf);
		return;
	}
	memcpy(rte_pktmbuf_append(mbuf, (uint16_t)packet->len), packet->data, packet->len);
	mbuf->port = port->data->port_id;
	if (rte_ring_enqueue(port->received, mbuf)) {
		port->stats.imissed++;
		rte_pktmbuf_free(mbuf);
		return;
	}
	port->stats.ipackets++;
	port->stats.ibytes += packet->len;
}

/* A frame that no rule has taken: to the kernel, or if it has it already to the application. */
static void slow_path(struct swport *port, struct packet *packet)
{
	if (!port->is_switch) {
		if (!port->isolated && (!packet->to_other_host || port->data->promiscuous))
			receive(port, packet);
		return;
	}
	if (packet_write(port->kernel.fd, packet) < 0)
		port->stats.ierrors++;
}

static void from_outside(struct swport *port, struct packet *packet)
{
	struct sw_rule *rule;

	rule = sw_table_apply(&port->table, true, packet->data, packet->len);
	if (!rule)
		rule = sw_table_apply(&port->table, false, packet->data, packet->len);
	if (rule && rule->fate == SW_QUEUE)
		receive(port, packet);
	else if (!rule)
		slow_path(port, packet);
	else if (rule->fate == SW_FORWARD)
		send_out(swflow_port(rule->out_port), packet);
}

static void from_kernel(struct swport *port, struct packet *packet)
{
	send_out(port, packet);
}

static void drain(struct swport *port, struct swport_end *end,
		  void (*take)(struct swport *port, struct packet *packet))
{
	int i, rc;

	for (i = 0; i < BURST; i++) {
		rc = packet_read(end->fd, &port->packet);
		if (rc == 0)
			return;
		pthread_mutex_lock(&swflow_lock);
		if (rc > 0)
			take(port, &port->packet);
		else
			port->stats.ierrors++;
		pthread_mutex_unlock(&swflow_lock);
	}
}

static void *forward(void *arg)
{
	struct swport *port = arg;
	struct pollfd waits[3] = {
		{ .fd = port->wake, .events = POLLIN },
		{ .fd = outside(port)->fd, .events = POLLIN },
		{ .fd = port->is_switch ? port->kernel.fd : -1, .events = POLLIN },
	};

	for (;;) {
		if (poll(waits, RTE_DIM(waits), -1) < 0 && errno != EINTR)
			return NULL;
		if (waits[0].revents)
			return NULL;
		if (waits[1].revents)
			drain(port, outside(port), from_outside);
		if (waits[2].revents)
			drain(port, &port->kernel, from_kernel);
	}
}

static uint16_t rx_burst(void *queue, struct rte_mbuf **mbufs, uint16_t nb_mbufs)
{
	struct swport *port = queue;

	return (uint16_t)rte_ring_dequeue_burst(port->received, (void **)mbufs, nb_mbufs, NULL);
}

static int send_mbuf(struct swport *port, struct rte_mbuf *mbuf)
{
	uint8_t whole[2048];
	const void *data = mbuf->buf_addr;

	if (!port->running)
		return -ENETDOWN;
	if (mbuf->nb_segs > 1 && mbuf->pkt_len > sizeof(whole))
		return -EMSGSIZE;
	data = rte_pktmbuf_read(mbuf, 0, mbuf->pkt_len, whole);
	if (!data)
		return -EINVAL;
	return packet_write_bytes(outside(port)->fd, data, mbuf->pkt_len);
}

static uint16_t tx_burst(void *queue, struct rte_mbuf **mbufs, uint16_t nb_mbufs)
{
	struct swport *port = queue;
	uint16_t i;

	pthread_mutex_lock(&swflow_lock);
	for (i = 0; i < nb_mbufs; i++) {
		count_sent(port, mbufs[i]->pkt_len, send_mbuf(port, mbufs[i]));
		rte_pktmbuf_free(mbufs[i]);
	}
	pthread_mutex_unlock(&swflow_lock);
	return nb_mbufs;
}

static int open_end(struct swport_end *end, bool promiscuous)
{
	int rc;

	end->fd = packet_open(end->ifindex);
	if (end->fd < 0) {
		SWFLOW_LOG(ERR, "cannot open a packet socket on %s: %s\n", end->name, strerror(-end->fd));
		return end->fd;
	}
	rc = promiscuous ? packet_promiscuous(end->fd, end->ifindex, true) : 0;
	if (rc < 0)
		SWFLOW_LOG(ERR, "cannot have %s take all frames: %s\n", end->name, strerror(-rc));
	return rc;
}

static void close_end(struct swport_end *end)
{
	if (end->fd >= 0)
		close(end->fd);
	end->fd = -1;
}

static void close_ends(struct swport *port)
{
	close_end(&port->iface);
	close_end(&port->kernel);
	close_end(&port->wire);
	if (port->wake >= 0)
		close(port->wake);
	port->wake = -1;
}

static int open_ends(struct swport *port)
{
	int rc;

	port->wake = eventfd(0, EFD_CLOEXEC);
	if (port->wake < 0)
		return -errno;
	if (!port->is_switch)
		return open_end(&port->iface, port->data->promiscuous);
	rc = open_end(&port->wire, true);
	return rc < 0 ? rc : open_end(&port->kernel, true);
}

static int start_thread(struct swport *port)
{
	sigset_t all, before;
	int rc;

	/* Signals are the application's business. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&port->thread, NULL, forward, port);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc)
		pthread_setname_np(port->thread, "swflow");
	return -rc;
}

static void set_running(struct swport *port, bool running)
{
	pthread_mutex_lock(&swflow_lock);
	port->running = running;
	pthread_mutex_unlock(&swflow_lock);
	port->data->dev_link.link_status = running;
}

static void set_queue_states(struct rte_eth_dev_data *data, uint8_t state)
{
	uint16_t i;

	for (i = 0; i < data->nb_rx_queues; i++)
		data->rx_queue_state[i] = state;
	for (i = 0; i < data->nb_tx_queues; i++)
		data->tx_queue_state[i] = state;
}

static int port_start(struct rte_eth_dev *dev)
{
	struct swport *port = dev->data->dev_private;
	int rc = open_ends(port);

	if (!rc) {
		set_running(port, true);
		rc = start_thread(port);
	}
	if (rc) {
		set_running(port, false);
		close_ends(port);
		return rc;
	}
	set_queue_states(dev->data, RTE_ETH_QUEUE_STATE_STARTED);
	return 0;
}

static int port_stop(struct rte_eth_dev *dev)
{
	struct swport *port = dev->data->dev_private;
	const uint64_t one = 1;

	if (!port->running)
		return 0;
	if (write(port->wake, &one, sizeof(one)) != sizeof(one))
		return -errno;
	pthread_join(port->thread, NULL);
	set_running(port, false);
	close_ends(port);
	set_queue_states(dev->data, RTE_ETH_QUEUE_STATE_STOPPED);
	return 0;
}

static void free_received(struct swport *port)
{
	struct rte_ring *ring = port->received;
	void *mbuf;

	pthread_mutex_lock(&swflow_lock);
	port->received = NULL;
	pthread_mutex_unlock(&swflow_lock);
	while (ring && !rte_ring_dequeue(ring, &mbuf))
		rte_pktmbuf_free(mbuf);
	rte_ring_free(ring);
}

static int port_close(struct rte_eth_dev *dev)
{
	struct swport *port = dev->data->dev_private;
	int rc = port_stop(dev);

	pthread_mutex_lock(&swflow_lock);
	swflow_remove_rules(port);
	ports[dev->data->port_id] = NULL;
	pthread_mutex_unlock(&swflow_lock);
	free_received(port);
	/* It lies in the port, which ethdev frees by itself. */
	dev->data->mac_addrs = NULL;
	return rc;
}

static int port_configure(struct rte_eth_dev *dev __rte_unused)
{
	return 0;
}

static int port_info(struct rte_eth_dev *dev, struct rte_eth_dev_info *info)
{
	struct swport *port = dev->data->dev_private;

	info->if_index = port->iface.ifindex;
	info->max_mac_addrs = 1;
	info->min_mtu = RTE_ETHER_MIN_MTU;
	info->max_mtu = UINT16_MAX - RTE_ETHER_HDR_LEN;
	info->max_rx_pktlen = UINT16_MAX;
	info->max_rx_queues = 1;
	info->max_tx_queues = TX_QUEUES;
	/* Of one queue, any hash is right. dpdk-test-flow-perf asks for these. */
	info->flow_type_rss_offloads = RTE_ETH_RSS_IP;
	info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	/* Rules are the switch's: they stay while the port is stopped. */
	info->dev_capa = RTE_ETH_DEV_CAPA_FLOW_RULE_KEEP;
	info->switch_info.name = "software switch";
	info->switch_info.domain_id = 0;
	info->switch_info.port_id = dev->data->port_id;
	return 0;
}

static int rx_queue_setup(struct rte_eth_dev *dev, uint16_t queue, uint16_t nb_desc, unsigned int socket,
			  const struct rte_eth_rxconf *conf __rte_unused, struct rte_mempool *pool)
{
	struct swport *port = dev->data->dev_private;
	unsigned int size = rte_align32pow2(RTE_MAX(nb_desc, RING_MIN) + 1u);
	char name[RTE_RING_NAMESIZE];

	free_received(port);
	snprintf(name, sizeof(name), "swflow_rx_%u", dev->data->port_id);
	port->pool = pool;
	/* The port's thread fills it, one application thread empties it. */
	port->received = rte_ring_create(name, size, (int)socket, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (!port->received)
		return -rte_errno;
	dev->data->rx_queues[queue] = port;
	return 0;
}

static int tx_queue_setup(struct rte_eth_dev *dev, uint16_t queue, uint16_t nb_desc __rte_unused,
			  unsigned int socket __rte_unused, const struct rte_eth_txconf *conf __rte_unused)
{
	dev->data->tx_queues[queue] = dev->data->dev_private;
	return 0;
}

static int link_update(struct rte_eth_dev *dev __rte_unused, int wait __rte_unused)
{
	/* Up while the port is started, which start and stop have written down. */
	return 0;
}

static int read_stats(struct rte_eth_dev *dev, struct rte_eth_stats *stats)
{
	struct swport *port = dev->data->dev_private;

	pthread_mutex_lock(&swflow_lock);
	*stats = port->stats;
	stats->rx_nombuf = dev->data->rx_mbuf_alloc_failed;
	pthread_mutex_unlock(&swflow_lock);
	return 0;
}

#if RTE_VERSION >= RTE_VERSION_NUM(25, 11, 0, 0)
static int stats_get(struct rte_eth_dev *dev, struct rte_eth_stats *stats,
		     struct eth_queue_stats *queues __rte_unused)
{
	return read_stats(dev, stats);
}
#else
static int stats_get(struct rte_eth_dev *dev, struct rte_eth_stats *stats)
{
	return read_stats(dev, stats);
}
#endif

static int stats_reset(struct rte_eth_dev *dev)
{
	struct swport *port = dev->data->dev_private;

	pthread_mutex_lock(&swflow_lock);
	memset(&port->stats, 0, sizeof(port->stats));
	dev->data->rx_mbuf_alloc_failed = 0;
	pthread_mutex_unlock(&swflow_lock);
	return 0;
}

/* A switch takes all frames anyhow; what changes is what the application gets. */
static int set_promiscuous(struct rte_eth_dev *dev, bool on)
{
	struct swport *port = dev->data->dev_private;

	if (!port->running || port->is_switch)
		return 0;
	return packet_promiscuous(port->iface.fd, port->iface.ifindex, on);
}

static int promiscuous_enable(struct rte_eth_dev *dev)
{
	return set_promiscuous(dev, true);
}

static int promiscuous_disable(struct rte_eth_dev *dev)
{
	return set_promiscuous(dev, false);
}

static int request(const struct swport_end *end, unsigned long what, struct ifreq *ifreq)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0)
		return -errno;
	memcpy(ifreq->ifr_name, end->name, sizeof(ifreq->ifr_name));
	rc = ioctl(fd, what, ifreq) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static int mtu_set(struct rte_eth_dev *dev, uint16_t mtu)
{
	struct swport *port = dev->data->dev_private;
	struct ifreq ifreq = { .ifr_mtu = mtu };

	return request(&port->iface, SIOCSIFMTU, &ifreq);
}

static int mac_addr_set(struct rte_eth_dev *dev, struct rte_ether_addr *mac)
{
	struct swport *port = dev->data->dev_private;
	struct ifreq ifreq = { 0 };
	int rc = request(&port->iface, SIOCGIFHWADDR, &ifreq);

	if (rc)
		return rc;
	memcpy(ifreq.ifr_hwaddr.sa_data, mac->addr_bytes, RTE_ETHER_ADDR_LEN);
	return request(&port->iface, SIOCSIFHWADDR, &ifreq);
}

static int flow_ops_get(struct rte_eth_dev *dev __rte_unused, const struct rte_flow_ops **ops)
{
	*ops = &swflow_flow_ops;
	return 0;
}

static const struct eth_dev_ops port_ops = {
	.dev_configure = port_configure,
	.dev_start = port_start,
	.dev_stop = port_stop,
	.dev_close = port_close,
	.dev_infos_get = port_info,
	.rx_queue_setup = rx_queue_setup,
	.tx_queue_setup = tx_queue_setup,
	.link_update = link_update,
	.stats_get = stats_get,
	.stats_reset = stats_reset,
	.promiscuous_enable = promiscuous_enable,
	.promiscuous_disable = promiscuous_disable,
	.mtu_set = mtu_set,
	.mac_addr_set = mac_addr_set,
	.flow_ops_get = flow_ops_get,
};

static int copy_name(const char *key, const char *value, void *end)
{
	char *name = ((struct swport_end *)end)->name;

	if (!value || !value[0] || strlen(value) >= IFNAMSIZ || name[0]) {
		SWFLOW_LOG(ERR, "%s= needs the name of an interface, once\n", key);
		return -EINVAL;
	}
	memcpy(name, value, strlen(value) + 1);
	return 0;
}

static int parse_arguments(const char *text, struct swport *port)
{
	struct swport_end *ends[] = { &port->iface, &port->kernel, &port->wire };
	struct rte_kvargs *list = rte_kvargs_parse(text, arguments);
	size_t i;
	int rc = 0;

	if (!list) {
		SWFLOW_LOG(ERR, "cannot read the arguments \"%s\": known are iface=, switch= and wire=\n", text);
		return -EINVAL;
	}
	for (i = 0; i < RTE_DIM(ends) && !rc; i++)
		rc = rte_kvargs_process(list, arguments[i], copy_name, ends[i]);
	rte_kvargs_free(list);
	return rc ? -EINVAL : 0;
}

static int find_end(struct swport_end *end)
{
	end->fd = -1;
	if (!end->name[0])
		return 0;
	end->ifindex = if_nametoindex(end->name);
	if (end->ifindex)
		return 0;
	SWFLOW_LOG(ERR, "no interface %s in this network namespace\n", end->name);
	return -ENODEV;
}

static int find_ends(struct swport *port)
{
	int rc = find_end(&port->iface);

	if (!rc)
		rc = find_end(&port->kernel);
	if (!rc)
		rc = find_end(&port->wire);
	if (rc)
		return rc;
	if (!port->iface.ifindex) {
		SWFLOW_LOG(ERR, "iface= is missing: the interface that the kernel knows the port by\n");
		return -EINVAL;
	}
	if (!port->kernel.ifindex != !port->wire.ifindex) {
		SWFLOW_LOG(ERR, "switch= and wire= need each other: give both, or neither\n");
		return -EINVAL;
	}
	port->is_switch = port->wire.ifindex != 0;
	return 0;
}

static int init_port(struct rte_vdev_device *vdev, struct swport *port)
{
	struct ifreq ifreq = { 0 };
	int rc;

	port->wake = -1;
	sw_table_init(&port->table);
	rc = parse_arguments(rte_vdev_device_args(vdev), port);
	if (!rc)
		rc = find_ends(port);
	if (!rc)
		rc = request(&port->iface, SIOCGIFHWADDR, &ifreq);
	memcpy(port->mac.addr_bytes, ifreq.ifr_hwaddr.sa_data, RTE_ETHER_ADDR_LEN);
	return rc;
}

static void fill_data(struct rte_eth_dev_data *data, struct swport *port)
{
	port->data = data;
	data->mac_addrs = &port->mac;
	data->promiscuous = 1;
	data->dev_link.link_speed = RTE_ETH_SPEED_NUM_10G;
	data->dev_link.link_duplex = RTE_ETH_LINK_FULL_DUPLEX;
	data->dev_link.link_status = RTE_ETH_LINK_DOWN;
}

static int probe(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev;
	struct swport *port;
	int rc;

	if (rte_eal_process_type() != RTE_PROC_PRIMARY)
		return -ENOTSUP;
	if (vdev->device.numa_node == SOCKET_ID_ANY)
		vdev->device.numa_node = (int)rte_socket_id();
	dev = rte_eth_vdev_allocate(vdev, sizeof(*port));
	if (!dev)
		return -ENOMEM;
	port = dev->data->dev_private;
	rc = init_port(vdev, port);
	if (rc) {
		rte_eth_dev_release_port(dev);
		return rc;
	}
	fill_data(dev->data, port);
	dev->dev_ops = &port_ops;
	dev->rx_pkt_burst = rx_burst;
	dev->tx_pkt_burst = tx_burst;
	pthread_mutex_lock(&swflow_lock);
	ports[dev->data->port_id] = port;
	pthread_mutex_unlock(&swflow_lock);
	SWFLOW_LOG(NOTICE, "port %u on %s is a software switch, not hardware\n", dev->data->port_id,
		   port->iface.name);
	rte_eth_dev_probing_finish(dev);
	return 0;
}

static int remove_port(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev = rte_eth_dev_allocated(rte_vdev_device_name(vdev));

	if (!dev)
		return 0;
	port_close(dev);
	return rte_eth_dev_release_port(dev);
}

static struct rte_vdev_driver driver = {
	.probe = probe,
	.remove = remove_port,
};

RTE_PMD_REGISTER_VDEV(net_swflow, driver);
RTE_PMD_REGISTER_PARAM_STRING(net_swflow, "iface=<interface> switch=<interface> wire=<interface>");
