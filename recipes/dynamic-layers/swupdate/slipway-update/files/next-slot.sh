#!/bin/sh
# Runs on the board once the other slot is written, and makes that the next to boot.
set -e

case "$(nvbootctrl get-current-slot)" in
0) next=1 device=/dev/disk/by-partlabel/APP_b status=RootfsStatusSlotB ;;
1) next=0 device=/dev/disk/by-partlabel/APP status=RootfsStatusSlotA ;;
*) echo "nvbootctrl does not name the slot that runs" >&2; exit 1 ;;
esac

# The bytes of one of the firmware's variables, behind four of attributes. An AGX
# Xavier cannot write them while Linux runs, and leaves them as files for its firmware.
value() {
	for file in "/boot/efi/EFI/NVDA/Variables/$1" "/sys/firmware/efi/efivars/$1"; do
		if [ -e "$file" ]; then
			od -An -v -tu1 -j4 "$file"
			return
		fi
	done
}

# The board stays who it is: its users know its host keys, its network its machine-id.
# What was deployed to it comes along; containers and their images do not.
new=$(mktemp -d)
trap 'umount "$new" 2>/dev/null || :; rmdir "$new"' EXIT
trap 'exit 1' INT TERM
mount -t ext4 "$device" "$new"
for name in /etc/machine-id /etc/ssh/ssh_host_* /var/lib/slipway; do
	[ -e "$name" ] || continue
	mkdir -p "$new${name%/*}"
	cp -a "$name" "$new${name%/*}/"
done
umount "$new"

# A slot that once failed to boot stays barred until its status is reset. What is
# written to the firmware's variables is read again: not every release's tools tell.
guid=781e084c-a330-417c-b678-38e696380cb9
. /usr/bin/uefi_common.func
set_efi_var "$status" "$guid" '\x00\x00\x00\x00'
if [ "$(echo $(value "$status-$guid"))" != "0 0 0 0" ]; then
	echo "the firmware did not take $status; it would not boot the slot" >&2
	exit 1
fi

# What was written must be there before the board is told to use it.
sync

# The firmware takes the capsule at the next boot and then boots the slot that it
# updated. Without one (left out of the update) the slot is switched here.
if [ -e /boot/efi/EFI/UpdateCapsule/TEGRA_BL.Cap ]; then
	/usr/bin/oe4t-set-uefi-OSIndications
	set -- $(value OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c)
	if [ $((${1:-0} & 4)) -eq 0 ]; then
		echo "the firmware was not told of the capsule: OsIndications lacks bit 2" >&2
		exit 1
	fi
else
	nvbootctrl set-active-boot-slot "$next"
fi
