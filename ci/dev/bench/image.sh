#!/bin/sh -eu
# Makes a disk image of $2 bytes in the file $1: runs of data from 64 KiB to 16 MiB with holes of
# about twice their length between them, like file systems in an image. 4 GiB hold 1.34 GB. Two
# sevenths of each run are random, like packed files. The rest are this machine's programs and
# libraries. zstd -3 halves it. Makes the file $3 with all of the runs random.
awk -v size="$2" 'BEGIN {
	srand(1)
	for (at = 0; at < size; at += length_ + int(length_ * 11 / 5 / 4096) * 4096) {
		length_ = 65536 * 2 ^ int(9 * rand())
		if (length_ > size - at)
			length_ = size - at
		printf "%.0f %.0f\n", at, length_
	}
}' >"$1.runs"
write() { # a file, an offset and a number of bytes, from standard input
	dd of="$1" bs=64K iflag=fullblock,count_bytes oflag=seek_bytes conv=notrunc status=none seek="$2" count="$3"
}
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
