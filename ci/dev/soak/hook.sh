# Makes a board in this mount namespace, in the new folder $1: libraries of this machine, links,
# a folder and a device, with a list for the hook $2. Containers of its image, of busybox and
# ldconfig, prove that they get them. Their names begin with $3. $4 of them run one after another,
# after a part of them that run at the same time. All must succeed and leave nothing.
mkdir "$1"
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

together=8 few=$(($4 / 20)) begun=0 change= work=
[ $few -ge $together ] || few=$together

# run_containers runs $1 containers, $2 at a time. They are never stopped half-way: a create that
# does not end leaves cgroups that no delete knows of. After a Ctrl-C no more of them begin.
run_containers() {
	seq $((begun + 1)) $((begun + $1)) | xargs -P "$2" -I N sh -ec '
		trap "exit 255" EXIT # at which xargs begins no more
		[ ! -e "$1/stop" ]
		mkdir "$1/bundles/$2"
		cd "$1/bundles/$2"
		cp -a "$1/image" rootfs
		cp "$1/config.json" .
		runc --root "$1/state" run "$2" >log 2>&1 || {
			cat log >&2
			exit 1
		}
		cd /
		rm -rf --one-file-system "$1/bundles/$2"
		trap - EXIT
	' sh "$board" "${prefix}N" &
	work=$!
	begun=$((begun + $1))
	wait $work
}

# change_list puts the lines of the board's list into another order again and again, by rename,
# until the file "enough" exists. A kill would leave its mv, which then takes the next new list.
change_list() {
	version=0
	while [ ! -e "$board/enough" ] && kill -0 $$; do
		version=$((version + 1))
		{
			echo "# version $version"
			tail -n +$((version % lines + 1)) "$board/list"
			head -n $((version % lines)) "$board/list"
		} >$lists/new
		mv $lists/new $lists/l4t.csv
		sleep 0.05
	done
}

run_while_changing() {
	cp $lists/l4t.csv list
	lines=$(wc -l <list)
	change_list &
	change=$!
	run_containers "$1" "$2"
	touch enough
	wait $change
	change=
	cp list $lists/new
	mv $lists/new $lists/l4t.csv
}

# list_remains lists what containers and the hook can leave: mounts, files, cgroups, processes.
list_remains() {
	grep -h -e "$board" -e /run/slipway /proc/self/mountinfo /proc/1/mountinfo
	ls -A bundles state /run/slipway | grep -vx plan
	find /sys/fs/cgroup -ignore_readdir_race -name "$prefix*"
	for process in /proc/[0-9]*; do readlink "$process/exe"; done | grep -Fx "$hook" || true
}

phase() { # what it does, and the command
	name=$1 start=$(date +%s)
	shift
	"$@"
	echo "$name: $(($(date +%s) - start)) s"
	if ! list_remains | diff before -; then
		echo "$name left what has a >"
		exit 1
	fi
}

board=$1 hook=$2 prefix=$3
trap '[ -z "$change" ] || kill $change' EXIT
trap 'touch "$board/stop"; wait $work; exit 1' INT TERM
run_containers 1 1 # it begins the log
list_remains >before
phase "$few containers, $together at a time" run_containers $few $together
phase "as many while the board's list changes" run_while_changing $few $together
phase "$4 containers, one after another" run_containers "$4" 1
test -s /run/slipway/plan # without a plan the hook read the lists each time
