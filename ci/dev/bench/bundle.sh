#!/bin/sh -eu
# Makes the bundle of the next container, number $3, in the folder $1. Its root is a new overlay
# of the image on the medium $2. $4 and $5 are its command and variables, $6 the command of its
# hook or null, all as JSON.
cd "$1"
! mountpoint -q bundle/rootfs || umount -l bundle/rootfs
rm -rf bundle
changes=$1/$2/changes/$3 # they stay: see mountNewDisk
mkdir -p bundle/rootfs "$changes/upper" "$changes/work"
mount -t overlay -o "lowerdir=$1/$2/image,upperdir=$changes/upper,workdir=$changes/work" overlay bundle/rootfs
hooks={}
if [ "$6" != null ]; then
	path=${6#?}
	hooks="{\"createRuntime\": [{\"path\": ${path%%,*}, \"args\": $6, \"env\": [\"PATH=/usr/bin:/bin\"]}]}"
fi
cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": $4, "env": $5}, "hooks": $hooks,
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}]}}
END
sync -f "$2" # so that earlier writes are not measured
sleep 0.02   # the kernel removes the mounts of the last container in the background
