#!/bin/sh -eu
# bench flash: an image in two forms, raw and zst, and a loop device. Each form has a folder in
# which the command flash can be run, with an artifact in build/<board>.
. ci/dev/bench/functions.sh
images=$dir/raw/build/$board packed=$dir/zst/build/$board
used=$dir/used.img # its data are on the device before each flash

# write_data makes a disk image of $2 bytes in the file $1: runs of data from 64 KiB to 16 MiB
# with holes of about twice their length between them, like file systems in an image. 4 GiB hold
# 1.34 GB. Two sevenths of each run are random, like packed files. The rest are this machine's
# programs and libraries. zstd -3 halves it. The file $3 gets random data in the same places.
write_data() {
	awk -v size="$2" 'BEGIN {
		srand(1)
		for (at = 0; at < size; at += length_ + int(length_ * 11 / 5 / 4096) * 4096) {
			length_ = 65536 * 2 ^ int(9 * rand())
			if (length_ > size - at)
				length_ = size - at
			printf "%.0f %.0f\n", at, length_
		}
	}' >"$1.runs"
	truncate -s "$2" "$1" "$3"
	while :; do
		find /usr/bin /usr/lib -type f -exec cat {} +
	done 2>/dev/null | while read -r at bytes <&3; do
		random=$((bytes / 7 * 2))
		write "$1" "$at" $((bytes - random))
		write "$1" $((at + bytes - random)) $random </dev/urandom
		write "$3" "$at" "$bytes" </dev/urandom
	done 3<"$1.runs"
	sync "$1" "$3"
}

write() { # a file, an offset and a number of bytes, from standard input
	dd of="$1" bs=64K iflag=fullblock,count_bytes oflag=seek_bytes conv=notrunc status=none seek="$2" count="$3"
}

case $1 in
setup)
	build_program . ./magefiles/slipway
	go build -o "$dir/sender" ./ci/dev/bench/sender
	mkdir -p "$images" "$packed"
	write_data "$images/disk.img" $((mib << 20)) "$used"
	for image in "$images/disk.img" "$used"; do
		bmaptool create -o "${image%.img}.bmap" "$image"
	done
	cp "$images/disk.bmap" "$packed"
	zstd -3 -T0 -q -o "$packed/disk.img.zst" "$images/disk.img" # Yocto's settings
	write_artifact "$images" disk:disk.img bmap:disk.bmap
	write_artifact "$packed" disk:disk.img.zst bmap:disk.bmap
	truncate -s "${mib}M" "$dir/device"
	# Direct I/O keeps this machine's memory from serving as the disk.
	echo "device=$(losetup --find --show --direct-io=on "$dir/device")"
	echo "map=$images/disk.bmap"
	echo "raw=$images/disk.img"
	echo "zst=$packed/disk.img.zst"
	;;
prepare)
	# The device looks used: other data in the places of the image's data, nothing elsewhere, and
	# all of that on the disk. So no variant finds the data of the one before it, and the file's
	# blocks are allocated, as those of a real device are. Then the image is in the page cache, as
	# if it had just been made or fetched.
	blkdiscard -f "$device"
	bmaptool -q copy --bmap "${used%.img}.bmap" "$used" "$device"
	sync
	case $2 in
	raw) cat "$raw" ;;
	zst) cat "$zst" ;;
	esac >/dev/null
	;;
check) # no program is fast because it does not do its work; nothing of it stays in the page cache
	cmp "$images/disk.img" "$device"
	blockdev --flushbufs "$device"
	;;
figures) # the peak memory of all flashes by Slipway, if there were any
	[ ! -e "$program.peaks" ] || awk '$1 > peak { peak = $1 } END { printf "peak_rss_mb=%.2f\n", peak * 1024 / 1e6 }' "$program.peaks"
	;;
end) [ -z "${device-}" ] || losetup --detach "$device" ;;
esac
