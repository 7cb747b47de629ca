/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE
#include "packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define TAG_LEN 4
#define TAG_AT 12

/* Bursts of a sender that is quicker than this reader wait here. */
#define SOCKET_BUFFER (4 << 20)

static int set(int fd, int option, int value)
{
	return setsockopt(fd, SOL_PACKET, option, &value, sizeof(value));
}

static int prepare(int fd, unsigned int ifindex)
{
	int buffer = SOCKET_BUFFER;
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)ifindex,
	};

	if (set(fd, PACKET_VNET_HDR, 1) || set(fd, PACKET_AUXDATA, 1) || set(fd, PACKET_IGNORE_OUTGOING, 1))
		return -errno;
	/* As much as may be: the limit of the machine holds for those without rights. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	return 0;
}

int packet_open(unsigned int ifindex)
{
	/* No protocol before bind: else frames of all interfaces come in between. */
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	if (fd < 0)
		return -errno;
	rc = prepare(fd, ifindex);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

int packet_promiscuous(int fd, unsigned int ifindex, bool on)
{
	struct packet_mreq request = {
		.mr_ifindex = (int)ifindex,
		.mr_type = PACKET_MR_PROMISC,
	};
	int option = on ? PACKET_ADD_MEMBERSHIP : PACKET_DROP_MEMBERSHIP;

	if (setsockopt(fd, SOL_PACKET, option, &request, sizeof(request)))
		return -errno;
	return 0;
}

/* Puts the tag back between the addresses and the type. */
static void restore_tag(struct packet *packet, const struct tpacket_auxdata *aux)
{
	uint16_t type = aux->tp_status & TP_STATUS_VLAN_TPID_VALID ? aux->tp_vlan_tpid : ETH_P_8021Q;
	uint16_t tag[2] = { htons(type), htons(aux->tp_vlan_tci) };

	if (packet->len < TAG_AT)
		return;
	packet->data -= TAG_LEN;
	packet->len += TAG_LEN;
	memmove(packet->data, packet->data + TAG_LEN, TAG_AT);
	memcpy(packet->data + TAG_AT, tag, TAG_LEN);
	packet->offload.csum_start += TAG_LEN;
	packet->offload.hdr_len += TAG_LEN;
}

static void read_control(struct packet *packet, struct msghdr *message)
{
	struct tpacket_auxdata aux;
	struct cmsghdr *control;

	for (control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control)) {
		if (control->cmsg_level != SOL_PACKET || control->cmsg_type != PACKET_AUXDATA)
			continue;
		memcpy(&aux, CMSG_DATA(control), sizeof(aux));
		if (aux.tp_status & TP_STATUS_VLAN_VALID)
			restore_tag(packet, &aux);
	}
}

int packet_read(int fd, struct packet *packet)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
	struct iovec parts[2] = {
		{ &packet->offload, sizeof(packet->offload) },
		{ packet->room + TAG_LEN, sizeof(packet->room) - TAG_LEN },
	};
	struct sockaddr_ll from = { 0 };
	struct msghdr message = {
		.msg_name = &from,
		.msg_namelen = sizeof(from),
		.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);

	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if ((message.msg_flags & MSG_TRUNC) || (size_t)got < sizeof(packet->offload))
		return -EMSGSIZE;
	packet->data = packet->room + TAG_LEN;
	packet->len = (size_t)got - sizeof(packet->offload);
	packet->to_other_host = from.sll_pkttype == PACKET_OTHERHOST;
	read_control(packet, &message);
	return 1;
}

static int write_parts(int fd, const struct virtio_net_hdr *offload, const void *data, size_t len)
{
	struct iovec parts[2] = {
		{ (void *)offload, sizeof(*offload) },
		{ (void *)data, len },
	};
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (sendmsg(fd, &message, MSG_DONTWAIT) < 0)
		return -errno;
	return 0;
}

int packet_write(int fd, const struct packet *packet)
{
	struct virtio_net_hdr offload = packet->offload;

	/* The other flags speak of frames that came in; none may go out with them. */
	offload.flags &= VIRTIO_NET_HDR_F_NEEDS_CSUM;
	return write_parts(fd, &offload, packet->data, packet->len);
}

int packet_write_bytes(int fd, const void *data, size_t len)
{
	const struct virtio_net_hdr none = { 0 };

	return write_parts(fd, &none, data, len);
}

bool packet_finish_checksum(struct packet *packet)
{
	size_t start = packet->offload.csum_start;
	size_t at = start + packet->offload.csum_offset;
	uint32_t sum = 0;
	size_t i;

	if (!(packet->offload.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
		return true;
	if (at + 2 > packet->len)
		return false;
	for (i = start; i + 1 < packet->len; i += 2)
		sum += (uint32_t)packet->data[i] << 8 | packet->data[i + 1];
	if (i < packet->len)
		sum += (uint32_t)packet->data[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	/* All ones is the other zero; plain zero would mean no checksum in UDP. */
	sum = sum == 0xffff ? 0xffff : ~sum & 0xffff;
	packet->data[at] = (uint8_t)(sum >> 8);
	packet->data[at + 1] = (uint8_t)sum;
	packet->offload.flags = 0;
	return true;
}
