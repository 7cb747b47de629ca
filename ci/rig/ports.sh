#!/bin/sh
# Create the ports of a DPU and the places behind them, as a file lists them. p is a port, l
# a place:
#
#	p <-> esw-p ... wire-p <-> uplink, of the bridge br0 in namespace lan-p <-> eth0 in namespace l
#
# Between esw-p and wire-p there is nothing: that is the switch, which a driver of DPDK
# simulates. A rig runs this in its namespaces, and Isar's board at its start.
set -eu

# IPv6 sends packets of its own, which captures would hold. If br_netfilter is loaded, a
# bridge checks and cuts packets. A kernel without them has no such keys.
create_namespace() {
	ip netns add "$1"
	ip netns exec "$1" sysctl -qew net.ipv6.conf.default.disable_ipv6=1 net.bridge.bridge-nf-call-iptables=0
	# A new namespace copies the machine's first one, which may forward.
	ip netns exec "$1" sysctl -qw net.ipv4.ip_forward=0
}

# The kernel computes the checksums of what it sends, and cuts no packets later: a driver
# on a packet socket would see unfinished packets.
enable_link() {
	ethtool -K "$1" tx off >/dev/null
	ip link set "$1" up
}

create_port() {
	create_namespace "lan-$1"
	ip link add "$1" type veth peer name "esw-$1"
	ip link add "wire-$1" type veth peer name uplink netns "lan-$1"
	ip -n "lan-$1" link add br0 type bridge
	ip -n "lan-$1" link set dev uplink master br0 up
	ip -n "lan-$1" link set br0 up
	ip address add "$2" dev "$1"
	for link in "$1" "esw-$1" "wire-$1"; do
		enable_link "$link"
	done
}

create_place() {
	create_namespace "$1"
	ip link add "$1" netns "lan-$2" type veth peer name eth0 netns "$1"
	ip netns exec "$1" ethtool -K eth0 tx off >/dev/null
	ip -n "lan-$2" link set "$1" master br0 up
	ip -n "$1" address add "$3" dev eth0
	ip -n "$1" link set lo up
	ip -n "$1" link set eth0 up
	ip -n "$1" route add default via "$4"
}

# find_address prints the address of a port, without the length of its prefix.
find_address() { printf '%s\n' "$list" | sed -n "s,^port $1 \(.*\)/.*,\1,p"; }

ip link set lo up
sysctl -qew net.ipv6.conf.default.disable_ipv6=1
# What no rule takes is forwarded by the kernel. It answers for a port's address on that
# port alone, and not on its wire too.
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.arp_ignore=1
list=$(cat "$1")
while read -r kind name port address; do
	case $kind in
	port) create_port "$name" "$port" ;; # here the second word is the address
	place) create_place "$name" "$port" "$address" "$(find_address "$port")" ;;
	esac
done <<EOF
$list
EOF
