package ci

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/layers/run"
)

// bootedImage makes the image $1 of Debian 13, which boots by systemd-stub, and has a FAT for each of
// two forms: ESP, and one with the label $2. The folder root beside it is kept.
const bootedImage = `
cd "${1%/*}"
PATH=$PATH:/sbin:/usr/sbin
[ -d root ] || mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' --include=systemd-sysv,systemd-resolved,systemd-ukify,systemd-boot-efi,udev,dbus,openssh-server,sudo,iproute2,linux-image-amd64,dracut,cloud-init,netplan.io,locales \
	--customize-hook='rm -f "$1"/etc/hostname "$1"/etc/ssh/ssh_host_*; systemctl --root="$1" enable systemd-networkd' \
	--customize-hook='chroot "$1" sh -ec "cd /boot; dracut --quiet --force --no-hostonly --add-drivers \"virtio_blk virtio_pci ext4\" initrd \$(ls /lib/modules); ukify build --linux=\$(ls vmlinuz-*) --initrd=initrd --cmdline=\"root=PARTLABEL=root rw console=ttyS0\" --output=uki"' \
	trixie root
truncate -s 1826M "$1"
printf 'label: gpt\nname=esp, start=2048, size=128M, type=uefi\nname=second, size=16M\nname=root, size=1680M\n' | sfdisk --quiet "$1"
truncate -s 128M esp
truncate -s 16M second
truncate -s 1680M ext4
mkfs.vfat -n ESP esp
mkfs.vfat -n "$2" second
mmd -i esp ::/EFI ::/EFI/BOOT
mcopy -i esp root/boot/uki ::/EFI/BOOT/BOOTX64.EFI
mke2fs -q -t ext4 -d root ext4
dd if=esp of="$1" bs=1M seek=1 conv=notrunc
dd if=second of="$1" bs=1M seek=129 conv=notrunc
dd if=ext4 of="$1" bs=1M seek=145 conv=notrunc,sparse
rm esp second ext4`

// A booted Debian has the host name, address, user, host key and file that cloud-init reads of the
// form nocloud, and systemd of the form systemd.
func TestIdentitiesBoot(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" || os.Geteuid() != 0 {
		t.Skip("takes 20 minutes of an idle machine, root, and mmdebstrap, ovmf, qemu-system-x86, mtools, dosfstools, fdisk: SLIPWAY_LONG=1 go test ./ci -run IdentitiesBoot -timeout=1h -v")
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	flashtest.MustRun(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	const hash = "$6$abcdefgh$NUEwtPiqb.Qt1V3Yi77GwJrTOkwNudr4Zg70eABz2v9Ul0C0X60dAP4frAE3oTyO0l.m2C1awRDIlv2.2OJY3." // of secretpw
	for form, label := range map[string]string{"nocloud": "CIDATA", "systemd": "OTHER"} {
		t.Run(form, func(t *testing.T) {
			image, disk, row := filepath.Join(dir, form+".img"), filepath.Join(dir, form+".disk"), filepath.Join(dir, "lab-7.yml")
			flashtest.MustRun(t, "bash", "-ec", bootedImage, "bash", image, label)
			flashtest.Put(t, row, "form: "+form+"\nhostname: lab-7\naddress: 192.0.2.7/24\ngateway: 192.0.2.1\nfiles: {etc/motd: \"I am lab-7\\n\"}\n"+
				"user: {name: worker, password_hash: "+hash+", keys: ['"+strings.TrimSpace(string(readAll(t, key+".pub")))+"']}\n")
			spec := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File}}}
			var out bytes.Buffer
			if err := Flash(t.Context(), &out, spec, images.Options{Dir: dir}, []string{disk}, flash.Options{Image: image, OtherBoard: true}, row, true); err != nil {
				t.Fatal(err)
			}
			var receipts []flash.Receipt
			if err := json.Unmarshal(out.Bytes(), &receipts); err != nil {
				t.Fatal(err)
			}
			port := bootDisk(t, disk)
			ssh := []string{"-i", key, "-p", port, "-o", "UserKnownHostsFile=" + disk + ".known", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=20", "worker@127.0.0.1"}
			var got []byte
			for end := time.Now().Add(20 * time.Minute); time.Now().Before(end) && len(got) == 0; time.Sleep(5 * time.Second) {
				got, _ = exec.CommandContext(t.Context(), "ssh", append(ssh, "hostname; cat /etc/hostname /etc/motd; ip -br -4 address show scope global; ip route show default; echo secretpw | su worker -c 'echo password taken'")...).Output()
			}
			for _, want := range []string{"lab-7\nlab-7\nI am lab-7\n", " 192.0.2.7/24", "default via 192.0.2.1", "password taken"} {
				if !strings.Contains(string(got), want) {
					console := readAll(t, disk+".console")
					t.Fatalf("the booted board shows %q; want %q. Its console ends: %s", got, want, console[max(0, len(console)-2000):])
				}
			}
			if known := flashtest.MustRun(t, "ssh-keygen", "-l", "-f", disk+".known"); !strings.Contains(known, receipts[0].HostKey) {
				t.Errorf("the board's host key is %s; want %s", known, receipts[0].HostKey)
			}
		})
	}
}

// bootDisk boots a disk by UEFI in QEMU until the test ends. It returns the port of its SSH server.
func bootDisk(t *testing.T, disk string) (port string) {
	t.Helper()
	free, err := run.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	port = strconv.Itoa(free)
	flashtest.MustRun(t, "cp", "/usr/share/OVMF/OVMF_VARS_4M.fd", disk+".vars")
	qemu := exec.CommandContext(t.Context(), "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2048", "-smp", "2", "-display", "none", "-nodefaults",
		"-drive", "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd", "-drive", "if=pflash,format=raw,file="+disk+".vars",
		"-drive", "if=virtio,format=raw,file="+disk, "-serial", "file:"+disk+".console",
		"-netdev", "user,id=n,net=192.0.2.0/24,host=192.0.2.1,hostfwd=tcp:127.0.0.1:"+port+"-192.0.2.7:22", "-device", "virtio-net-pci,netdev=n")
	if err := qemu.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		qemu.Process.Kill()
		qemu.Wait()
	})
	return port
}
