#!/bin/sh -eu
# Has zstd unpack the image $1 once into tee, which gives it to a dd for each device in the file $2.
# bench place measures it.
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
image=$1
while read -r device; do
	set -- "$@" "$dir/$#"
	mkfifo "$dir/$(($# - 1))"
	dd of="$device" bs=4M iflag=fullblock oflag=direct conv=fsync status=none <"$dir/$(($# - 1))" &
done <"$2"
shift 2
zstd -dcq "$image" | tee "$@" >/dev/null
wait
