#!/bin/sh -eu
# bench place: a packed image, and used loop devices of files in memory, all in the folder ram.
. ci/dev/bench/functions.sh
ram=$dir/ram used=$dir/ram/used.img devices=17
# blkio of cgroup 1, or else io of cgroup 2
blkio=/sys/fs/cgroup/blkio io=/sys/fs/cgroup

# limit_device lets the cgroup's programs read and write $2 bytes per second of the device $1.
limit_device() {
	number=$(lsblk -dno MAJ:MIN "$1" | tr -d ' ')
	if [ -d "$blkio" ]; then
		echo "$number $2" >"$group/blkio.throttle.read_bps_device"
		echo "$number $2" >"$group/blkio.throttle.write_bps_device"
	else
		echo "$number rbps=$2 wbps=$2" >"$group/io.max"
	fi
}

median() { # of the numbers in a file
	sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int(NR / 2) + 1] }'
}

case $1 in
setup)
	go build -o "$dir/sender" ./ci/dev/bench/sender
	mkdir "$ram"
	echo "ram=$ram"
	mount -t tmpfs -o size=100% tmpfs "$ram"
	write_data "$ram/disk.img" $((mib << 20)) "$used"
	bmaptool -q create -o "$ram/disk.bmap" "$ram/disk.img"
	zstd -3 -T0 -q -o "$ram/disk.img.zst" "$ram/disk.img" # Yocto's settings
	echo "map=$ram/disk.bmap"
	echo "zst=$ram/disk.img.zst"
	mapped=$(($(stat -c %b "$ram/disk.img") * 512))
	echo "mapped=$mapped"
	if [ -d "$blkio" ]; then
		group=$blkio
	else
		group=$io
		echo +io >"$io/cgroup.subtree_control"
	fi
	group=$(mktemp -d "$group/bench-XXXXXX")
	echo "group=$group"
	: >"$ram/0"
	for i in $(seq $devices); do
		truncate -s $((mib + 8))M "$ram/device$i" # cards are larger than the image
		device=$(losetup --find --show --direct-io=on "$ram/device$i")
		blockdev --setrw "$device" # the kernel keeps that of an earlier file
		echo "device$i=$device"
		cat "$ram/$((i - 1))" - >"$ram/$i" <<-END
			$device
		END
	done
	# The ninth device writes and reads at a tenth of the speed of each of eight.
	xargs -a "$ram/8" "$dir/sender" place 8 "$ram/disk.bmap" "$ram/disk.img.zst"
	limit_device "$(tail -n 1 "$ram/9")" $((mapped * 2 / 10 * 1000 / $(cat "$ram/disk.img.zst".8.*)))
	rm "$ram/disk.img.zst".8.*
	;;
prepare) # $2 devices, with other data in the places of the image's data, as in bench flash
	for i in $(seq "$2"); do
		cp --sparse=always "$used" "$ram/device$i"
		truncate -s $((mib + 8))M "$ram/device$i"
		blockdev --flushbufs "$(tail -n 1 "$ram/$i")"
	done
	;;
check) # no program is fast because it does not do its work
	[ "$2" = none ] || while read -r device; do
		cmp -n $((mib << 20)) "$ram/disk.img" "$device"
		blockdev --flushbufs "$device"
	done <"$ram/$2"
	;;
figures) # how long the writing to 8 devices takes beside a slow one, over that without it
	if [ -n "$(find "$ram" -name '*.9.*')" ] && [ -n "$(find "$ram" -name '*.8.*')" ]; then
		cat "$zst".9.* >"$ram/slow"
		cat "$zst".8.* >"$ram/alone"
		echo "beside_slow_over_alone=$(echo "$(median "$ram/slow")" "$(median "$ram/alone")" | awk '{ printf "%.2f", $1 / $2 }')"
	fi
	;;
end)
	! [ -e "${ram-}/$devices" ] || xargs -a "$ram/$devices" losetup --detach
	[ -z "${group-}" ] || rmdir "$group"
	;;
esac
