#!/bin/sh
# Runs on the board once the other slot is written, and makes that the next to boot.
set -e

case "$(nvbootctrl get-current-slot)" in
0) next=1 status=RootfsStatusSlotB ;;
1) next=0 status=RootfsStatusSlotA ;;
*) echo "nvbootctrl does not name the slot that runs"; exit 1 ;;
esac

# A slot that once failed to boot stays barred until its status is reset.
. /usr/bin/uefi_common.func
set_efi_var "$status" 781e084c-a330-417c-b678-38e696380cb9 '\x00\x00\x00\x00'

# What was written must be there before the board is told to use it.
sync

# The firmware takes the capsule at the next boot and then boots the slot that it
# updated. Without one (left out of the update) the slot is switched here. From L4T R36
# on the program below ends with 0 even where the variable could not be written, so
# the variable is read: its bit 2, behind four bytes of attributes.
if [ -e /boot/efi/EFI/UpdateCapsule/TEGRA_BL.Cap ]; then
	/usr/bin/oe4t-set-uefi-OSIndications
	set -- $(od -An -tu1 /sys/firmware/efi/efivars/OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c)
	if [ $((${5:-0} & 4)) -eq 0 ]; then
		echo "the firmware was not told of the capsule: OsIndications lacks bit 2"
		exit 1
	fi
else
	nvbootctrl set-active-boot-slot "$next"
fi
