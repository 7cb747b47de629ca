#!/bin/sh -eu
# bench flash: an image in two forms, raw and zst, and a loop device. Each form has a folder in
# which the command flash can be run, with an artifact in build/<board>.
. ci/dev/bench/functions.sh
images=$dir/raw/build/$board packed=$dir/zst/build/$board
used=$dir/used.img # its data are on the device before each flash

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
