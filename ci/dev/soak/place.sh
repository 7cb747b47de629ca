# What soak place runs on the host. Arguments: a folder for all files, the verb, its arguments.
PATH=$PATH:/usr/sbin:/sbin
cd "$1"
case $2 in
files) # BOARD PROGRAM INIT ROWS: the image without data, other disks, and the files of the machine that are ours
	truncate -s 14M image
	printf 'label: gpt\nname=root, start=2048, size=20480\nname=CIDATA, start=22528, size=4096\n' | sfdisk --quiet image
	truncate -s 2M fat
	mformat -i fat -v CIDATA ::
	dd if=fat of=image bs=1M seek=11 conv=notrunc status=none
	truncate -s 32M other
	mke2fs -q -F -t ext4 -L photos other
	truncate -s 96M recorded
	mke2fs -q -F -t ext4 -L record recorded
	mkdir -p disks build/virt "guest/work/build/$3" guest/usr/bin
	cp "$4" guest/usr/bin/slipway
	printf '%s\n' "$5" | sed "s/BOARD/$3/" >guest/init
	chmod 755 guest/init
	cat >guest/work/place.yml <<-END
		record: /record
		failures: 1000000
		identity: {table: rows.csv, form: nocloud, partition: CIDATA, hostname: "{{host}}"}
		ports: {"usb:2-1": a, "usb:2-2": b, "usb:2-3": c, "usb:2-4": d, "usb:2-5": e, "usb:1-6.1": f, "usb:1-6.2": g, mmc0: h}
	END
	seq -f 'row%04g' 0 "$6" | sed 's/row0000/host/' >guest/work/rows.csv ;;
guest) # USERLAND: guest.cpio, the machine's root, and its kernel
	bsdtar --format=newc --uid=0 --gid=0 -cf guest.cpio --exclude=./boot -C "$3" . -C "$PWD/guest" .
	cp "$3"/boot/vmlinuz-* vmlinuz ;;
boot) # PROGRAM ACCELERATOR CPU: the machine, which waits for its disks. qmp commands it, and place leads to the guest
	rm -f qmp place
	exec "$3" -machine pc -accel "$4" -cpu "$5" -smp 2 -m 1024 -nodefaults -no-user-config -display none -S \
		-kernel vmlinuz -initrd guest.cpio -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=unstable' \
		-qmp unix:qmp,server=on,wait=off -serial file:console.log \
		-device virtio-serial-pci -chardev socket,id=place,path=place,server=on,wait=off -device virtserialport,chardev=place,name=place \
		-drive if=none,id=record,format=raw,file.locking=off,file=disks/record -device virtio-blk-pci,drive=record \
		-device qemu-xhci,id=xhci,p2=15,p3=15 -device usb-hub,bus=xhci.0,port=6 \
		-drive if=none,id=slot -device sdhci-pci -device sd-card,id=sd,drive=slot ;;
record) # the record's files, below the folder record
	mkdir record
	debugfs -R "rdump / record" recorded 2>/dev/null ;;
esac
