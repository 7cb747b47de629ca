# Functions of several areas.

# build_program builds the program that is measured: the package $2 of the module in the folder
# $1, of this checkout and of the earlier one.
build_program() {
	(
		export CGO_ENABLED=0 GOFLAGS="-trimpath '-ldflags=-s -w'"
		go build -C "$1" -o "$program" "$2"
		[ -z "$before" ] || go build -C "$before/$1" -o "$program.before" "$2"
	)
}

# write_artifact writes the artifact.json of the folder $1. The other arguments are its files, as
# KIND:NAME.
write_artifact() {
	(
		cd "$1"
		shift
		printf '{"board": "%s", "arch": "%s", "key": "%s", "built": "2026-11-01T00:00:00Z", "files": [' "$board" "${arch-}" "${key-}"
		comma=
		for file in "$@"; do
			sum=$(sha256sum "${file#*:}")
			printf '%s{"kind": "%s", "name": "%s", "sizeBytes": %s, "sha256": "%s"}' "$comma" "${file%%:*}" "${file#*:}" "$(stat -c %s "${file#*:}")" "${sum%% *}"
			comma=', '
		done
		echo ']}'
	) >"$1/artifact.json"
}

# mount_new_disk makes an ext4 of the size $2 in the file $1, and mounts it at $3. ext4 does not
# reuse the inode of a removed file for minutes, and skips all of them for each new file. On the
# machine's own file system, earlier removals would change the times. It initialises the tables
# at once, as the kernel would otherwise do so during the measurement.
mount_new_disk() {
	truncate -s "$2" "$1"
	mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$1"
	mount -o loop "$1" "$3"
}

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
