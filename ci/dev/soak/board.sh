# Makes a board in this mount namespace, in the folder $1: libraries of this machine, links,
# a folder and a device, with a list for the hook $2. Containers of its image, of busybox and
# ldconfig, prove that they get them. It stays until it is killed.
mount -t tmpfs -o mode=755 tmpfs "$1"
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /dev/shm
cd "$1"
mkdir -p changes work bundles state board/folder image/bin image/etc image/lib image/lib64 image/proc image/dev
mount -t overlay -o lowerdir=/etc,upperdir=changes,workdir=work overlay /etc
cp /bin/busybox /sbin/ldconfig image/bin
touch image/etc/ld.so.conf board/folder/file
for loader in /lib/ld-linux*.so.* /lib64/ld-linux*.so.*; do
	[ ! -e "$loader" ] || cp "$loader" "image$loader"
done

names='libm.so.6 libresolv.so.2 librt.so.1 libutil.so.1'
lists=/etc/nvidia-container-runtime/host-files-for-container.d
mkdir -p $lists
mknod -m 666 /dev/shm/board c 1 3
{
	for name in $names; do
		cp "$(ldconfig -p | sed -n "s/.*$name .*=> //p" | head -n 1)" "board/$name.0"
		ln -s "$name.0" "board/$name"
		printf 'lib, %s.0\nsym, %s\n' "$1/board/$name" "$1/board/$name"
	done
	printf 'dir, %s\ndev, /dev/shm/board\n' "$1/board/folder"
} >$lists/l4t.csv

cat >image/bin/proof <<END
set -ex
for name in $names; do
	[ -s "$1/board/\$name" ]
	ldconfig -p | busybox grep -q "\$name .*$1/board/"
done
[ -e "$1/board/folder/file" ]
: >/dev/shm/board
END
cat >config.json <<END
{
	"ociVersion": "1.0.2",
	"root": {"path": "rootfs"},
	"process": {"cwd": "/", "args": ["/bin/busybox", "sh", "/bin/proof"], "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]},
	"mounts": [
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}
	],
	"linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}]},
	"hooks": {"createRuntime": [{"path": "$2", "args": ["$2", "hook"], "env": ["PATH=/usr/bin:/bin"]}]}
}
END
echo ready
exec sleep infinity
