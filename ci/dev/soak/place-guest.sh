#!/bin/sh
# The first program of soak place's machine. It runs slipway place again and again, and takes words
# from the host: "kill" kills it, "stop" ends it and switches the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
/usr/lib/systemd/systemd-udevd --daemon
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle
mkdir -p /record
mount -t ext4 /dev/vda /record
exec 3<>/dev/virtio-ports/place
while read -r word; do
	case $word in
	kill) kill -9 $(busybox pidof slipway) ;;
	stop) touch /run/stop; kill -INT $(busybox pidof slipway) ;;
	esac
done <&3 &
cd /work
while [ ! -e /run/stop ]; do
	slipway place BOARD place.yml --json >&3
	printf '\n{"state":"EXIT","text":"%s"}\n' $? >&3
done
umount /record
busybox poweroff -f
