/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A compile check, written from the public documentation of DOCA 3.3. It holds
 * only what the plugin uses, with values that are ours: that something compiles
 * against it proves nothing about DOCA, and nothing may be linked or shipped
 * with it.
 */
#ifndef CHECK_DOCA_FLOW_H
#define CHECK_DOCA_FLOW_H

#include <doca_error.h>
#include <stdbool.h>
#include <stdint.h>

struct doca_dev;
struct doca_dev_rep;
struct doca_flow_cfg;
struct doca_flow_match_condition;
struct doca_flow_pipe;
struct doca_flow_pipe_cfg;
struct doca_flow_pipe_entry;
struct doca_flow_port;
struct doca_flow_port_cfg;
struct doca_flow_target;

#define DOCA_FLOW_MAX_ENTRY_ACTIONS_MEM_SIZE 128

/* Packets: what is matched, and what is made of them. */
enum doca_flow_l3_type { DOCA_FLOW_L3_TYPE_NONE, DOCA_FLOW_L3_TYPE_IP4 };
enum doca_flow_l3_meta { DOCA_FLOW_L3_META_NONE, DOCA_FLOW_L3_META_IPV4 };
enum doca_flow_l4_meta { DOCA_FLOW_L4_META_NONE, DOCA_FLOW_L4_META_TCP, DOCA_FLOW_L4_META_UDP };
enum doca_flow_l4_type_ext {
	DOCA_FLOW_L4_TYPE_EXT_NONE,
	DOCA_FLOW_L4_TYPE_EXT_TCP,
	DOCA_FLOW_L4_TYPE_EXT_UDP,
};

struct doca_flow_parser_meta {
	uint16_t port_id;
	enum doca_flow_l3_meta outer_l3_type;
	enum doca_flow_l4_meta outer_l4_type;
};

struct doca_flow_header_eth {
	uint8_t dst_mac[6];
	uint8_t src_mac[6];
};

struct doca_flow_header_ip4 {
	uint8_t ttl;
	uint8_t next_proto;
	uint32_t src_ip;
	uint32_t dst_ip;
};

struct doca_flow_header_l4_port {
	uint16_t src_port;
	uint16_t dst_port;
};

struct doca_flow_header_udp {
	struct doca_flow_header_l4_port l4_port;
};

struct doca_flow_header_tcp {
	struct doca_flow_header_l4_port l4_port;
	uint8_t flags;
};

struct doca_flow_header_format {
	struct doca_flow_header_eth eth;
	enum doca_flow_l3_type l3_type;
	struct doca_flow_header_ip4 ip4;
	enum doca_flow_l4_type_ext l4_type_ext;
	union {
		struct doca_flow_header_udp udp;
		struct doca_flow_header_tcp tcp;
	};
};

struct doca_flow_match {
	struct doca_flow_parser_meta parser_meta;
	struct doca_flow_header_format outer;
};

struct doca_flow_actions {
	struct doca_flow_header_format outer;
};

enum doca_flow_action_type { DOCA_FLOW_ACTION_AUTO, DOCA_FLOW_ACTION_ADD };

struct doca_flow_desc_field {
	const char *field_string;
	uint32_t bit_offset;
};

struct doca_flow_action_desc {
	enum doca_flow_action_type type;
	union {
		struct {
			struct doca_flow_desc_field src;
			struct doca_flow_desc_field dst;
			uint32_t width;
		} field_op;
	};
};

struct doca_flow_action_descs {
	uint8_t nb_action_desc;
	struct doca_flow_action_desc *desc_array;
};

enum doca_flow_resource_type { DOCA_FLOW_RESOURCE_TYPE_NONE, DOCA_FLOW_RESOURCE_TYPE_NON_SHARED };

struct doca_flow_monitor {
	enum doca_flow_resource_type counter_type;
};

enum doca_flow_target_type { DOCA_FLOW_TARGET_KERNEL };
enum doca_flow_fwd_type { DOCA_FLOW_FWD_NONE, DOCA_FLOW_FWD_PORT, DOCA_FLOW_FWD_PIPE, DOCA_FLOW_FWD_TARGET };

struct doca_flow_fwd {
	enum doca_flow_fwd_type type;
	union {
		uint16_t port_id;
		struct doca_flow_pipe *next_pipe;
		struct doca_flow_target *target;
	};
};

struct doca_flow_resource_query {
	struct {
		uint64_t total_bytes;
		uint64_t total_pkts;
	} counter;
};

/* The library, and its ports. */
enum doca_flow_resource_mode { DOCA_FLOW_RESOURCE_MODE_SYSTEM, DOCA_FLOW_RESOURCE_MODE_PORT };
enum doca_flow_resource { DOCA_FLOW_RESOURCE_COUNTER };
enum doca_flow_entry_status {
	DOCA_FLOW_ENTRY_STATUS_IN_PROCESS,
	DOCA_FLOW_ENTRY_STATUS_SUCCESS,
	DOCA_FLOW_ENTRY_STATUS_ERROR,
};
enum doca_flow_entry_op { DOCA_FLOW_ENTRY_OP_ADD, DOCA_FLOW_ENTRY_OP_DEL };

typedef void (*doca_flow_entry_process_cb)(struct doca_flow_pipe_entry *entry, uint16_t queue,
					   enum doca_flow_entry_status status, enum doca_flow_entry_op op,
					   void *context);

doca_error_t doca_flow_cfg_create(struct doca_flow_cfg **config);
doca_error_t doca_flow_cfg_destroy(struct doca_flow_cfg *config);
doca_error_t doca_flow_cfg_set_pipe_queues(struct doca_flow_cfg *config, uint16_t queues);
doca_error_t doca_flow_cfg_set_mode_args(struct doca_flow_cfg *config, const char *mode);
doca_error_t doca_flow_cfg_set_resource_mode(struct doca_flow_cfg *config, enum doca_flow_resource_mode mode);
doca_error_t doca_flow_cfg_set_cb_entry_process(struct doca_flow_cfg *config, doca_flow_entry_process_cb callback);
doca_error_t doca_flow_init(struct doca_flow_cfg *config);
void doca_flow_destroy(void);

doca_error_t doca_flow_port_cfg_create(struct doca_flow_port_cfg **config);
doca_error_t doca_flow_port_cfg_destroy(struct doca_flow_port_cfg *config);
doca_error_t doca_flow_port_cfg_set_port_id(struct doca_flow_port_cfg *config, uint16_t id);
doca_error_t doca_flow_port_cfg_set_dev(struct doca_flow_port_cfg *config, struct doca_dev *device);
doca_error_t doca_flow_port_cfg_set_dev_rep(struct doca_flow_port_cfg *config, struct doca_dev_rep *representor);
doca_error_t doca_flow_port_cfg_set_actions_mem_size(struct doca_flow_port_cfg *config, uint32_t size);
doca_error_t doca_flow_port_cfg_set_nr_resources(struct doca_flow_port_cfg *config, enum doca_flow_resource resource,
						 uint32_t count);
doca_error_t doca_flow_port_start(const struct doca_flow_port_cfg *config, struct doca_flow_port **port);
doca_error_t doca_flow_port_stop(struct doca_flow_port *port);
struct doca_flow_port *doca_flow_port_switch_get(const struct doca_flow_port *port);

/* Pipes, and their entries. */
enum doca_flow_pipe_type { DOCA_FLOW_PIPE_BASIC, DOCA_FLOW_PIPE_CONTROL };
enum { DOCA_FLOW_ENTRY_FLAGS_NO_WAIT };

doca_error_t doca_flow_get_target(enum doca_flow_target_type type, struct doca_flow_target **target);
doca_error_t doca_flow_pipe_cfg_create(struct doca_flow_pipe_cfg **config, struct doca_flow_port *port);
doca_error_t doca_flow_pipe_cfg_destroy(struct doca_flow_pipe_cfg *config);
doca_error_t doca_flow_pipe_cfg_set_name(struct doca_flow_pipe_cfg *config, const char *name);
doca_error_t doca_flow_pipe_cfg_set_type(struct doca_flow_pipe_cfg *config, enum doca_flow_pipe_type type);
doca_error_t doca_flow_pipe_cfg_set_is_root(struct doca_flow_pipe_cfg *config, bool root);
doca_error_t doca_flow_pipe_cfg_set_nr_entries(struct doca_flow_pipe_cfg *config, uint32_t entries);
doca_error_t doca_flow_pipe_cfg_set_match(struct doca_flow_pipe_cfg *config, const struct doca_flow_match *match,
					  const struct doca_flow_match *match_mask);
doca_error_t doca_flow_pipe_create(const struct doca_flow_pipe_cfg *config, const struct doca_flow_fwd *forward,
				   const struct doca_flow_fwd *miss, struct doca_flow_pipe **pipe);
void doca_flow_pipe_destroy(struct doca_flow_pipe *pipe);

doca_error_t doca_flow_pipe_basic_add_entry(uint16_t queue, struct doca_flow_pipe *pipe,
					    const struct doca_flow_match *match, uint8_t action,
					    const struct doca_flow_actions *actions,
					    const struct doca_flow_monitor *monitor,
					    const struct doca_flow_fwd *forward, uint32_t flags, void *context,
					    struct doca_flow_pipe_entry **entry);
doca_error_t doca_flow_pipe_control_add_entry(uint16_t queue, struct doca_flow_pipe *pipe,
					      const struct doca_flow_match *match,
					      const struct doca_flow_match *match_mask,
					      const struct doca_flow_match_condition *condition,
					      const struct doca_flow_actions *actions,
					      const struct doca_flow_actions *actions_mask,
					      const struct doca_flow_action_descs *descriptions,
					      const struct doca_flow_monitor *monitor, uint32_t priority,
					      const struct doca_flow_fwd *forward, void *context,
					      struct doca_flow_pipe_entry **entry);
doca_error_t doca_flow_pipe_remove_entry(uint16_t queue, uint32_t flags, struct doca_flow_pipe_entry *entry);
doca_error_t doca_flow_entries_process(struct doca_flow_port *port, uint16_t queue, uint64_t timeout,
				       uint32_t most);
doca_error_t doca_flow_resource_query_entry(struct doca_flow_pipe_entry *entry,
					    struct doca_flow_resource_query *query);

#endif
