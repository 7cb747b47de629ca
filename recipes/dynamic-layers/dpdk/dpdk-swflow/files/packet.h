/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Frames of a network interface by a packet socket, as the kernel has them:
 * with their VLAN tag, which it keeps beside the frame, with checksums that it
 * has left to hardware, and in pieces that it has not cut yet.
 */
#ifndef PACKET_H
#define PACKET_H

#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest frame that the kernel hands over: 64 KiB of IP, two headers. */
#define PACKET_ROOM (65536 + 64)

struct packet {
	struct virtio_net_hdr offload;
	bool to_other_host;
	size_t len;
	uint8_t *data;
	/* Before data lies room for a tag that has to be put back. */
	uint8_t room[PACKET_ROOM];
};

/* Opens an interface for reading and writing; less than 0 is -errno. */
int packet_open(unsigned int ifindex);

/* Has an interface take frames for all addresses, or no longer. */
int packet_promiscuous(int fd, unsigned int ifindex, bool on);

/*
 * Reads one frame: 1 for a frame, 0 for none there, less than 0 is -errno.
 * -EMSGSIZE is a frame that was longer than any may be; the next one follows.
 */
int packet_read(int fd, struct packet *packet);

/* Writes a frame as it was read; 0 or -errno. */
int packet_write(int fd, const struct packet *packet);

/* Writes a frame that is whole, with all its checksums; 0 or -errno. */
int packet_write_bytes(int fd, const void *data, size_t len);

/*
 * Computes the checksum that the kernel has left open. False is a frame that
 * says its checksum lies where it does not reach.
 */
bool packet_finish_checksum(struct packet *packet);

#endif
