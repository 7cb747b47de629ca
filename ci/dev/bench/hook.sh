#!/bin/sh -eu
# bench hook: a board, and a new container of its image for each life.
. ci/dev/bench/functions.sh
board=$dir/board peers=$PWD/build/peers nvidia=v1.20.1

case $1 in
setup)
	build_program runtime-hook .
	go version -m "$peers/nvidia-container-runtime" 2>/dev/null | grep -q "mod.*/nvidia-container-toolkit.*$nvidia" ||
		GOBIN=$peers go install "github.com/NVIDIA/nvidia-container-toolkit/cmd/...@$nvidia"
	CGO_ENABLED=0 go build -o "$dir/floor" ./ci/dev/bench/floor
	mkdir "$board"
	sh -eu ci/dev/bench/board.sh "$board" "$program" "$peers"
	mkdir "$board/disk"
	mount_new_disk "$dir/disk" 2G "$board/disk" # with space for the changes of all containers
	cp -a "$board/tmpfs/image" "$board/disk"
	echo "board=$board"
	echo "peers=$peers"
	;;
prepare) # the bundle of a container on the medium $2 with the hook $3. The first one runs show
	command='"/usr/bin/program"' environment='"PATH=/usr/bin"' hooks=
	[ -z "$first" ] || command='"/usr/bin/busybox", "sh", "/usr/bin/show"'
	[ "$3" = plain ] || environment="$environment, \"NVIDIA_VISIBLE_DEVICES=all\""
	case $3 in
	hook) hooks="\"path\": \"$program\", \"args\": [\"$program\", \"hook\"]" ;;
	floor) hooks="\"path\": \"$dir/floor\", \"args\": [\"$dir/floor\", \"$board/floor.plan\"]" ;;
	esac
	[ -z "$hooks" ] || hooks="\"createRuntime\": [{$hooks, \"env\": [\"PATH=/usr/bin:/bin\"]}]"
	cd "$board"
	! mountpoint -q bundle/rootfs || umount -l bundle/rootfs
	rm -rf bundle
	mkdir -p bundle/rootfs "$2/changes"
	changes=$(mktemp -d "$board/$2/changes/XXXXXX") # they stay: see mount_new_disk
	mkdir "$changes/upper" "$changes/work"
	mount -t overlay -o "lowerdir=$board/$2/image,upperdir=$changes/upper,workdir=$changes/work" overlay bundle/rootfs
	cat >bundle/config.json <<END
{"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": [$command], "env": [$environment]}, "hooks": {$hooks},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}]}}
END
	sync -f "$2" # so that earlier writes are not measured
	sleep 0.02   # the kernel removes the mounts of the last container in the background
	;;
check) # no method is fast because it does nothing; the floor makes no ld cache and gets the hook's
	cd "$board"
	files=$(grep -c '' tmpfs/image/list) libraries=$(grep -c '^lib, ' tmpfs/image/list)
	[ "$3" != plain ] || files=0 libraries=0
	has=$(grep -c '^has ' bundle/output || true) found=$(grep -cF "=> $board/lib/" bundle/output || true)
	if [ "$has $found" != "$files $libraries" ]; then
		cat bundle/output >&2
		echo "the container has $has of the board's files, not $files, and ld.so finds $found of its libraries, not $libraries" >&2
		exit 1
	fi
	[ "$3" != hook ] || cp bundle/rootfs/ld.so.cache .
	;;
esac
