#!/bin/sh -eu
# Makes a board in this mount namespace, in the folder $1: libraries, links, folders and
# devices, about as many as an R35 board has, and the list of them. Makes an image that has a
# real ld.so, libraries of its own, the program $2, and proof.so, which needs all of the board's.
# Its script show lists the board's files that a container has, and the libraries that ld.so
# finds. NVIDIA's programs are in the folder $3.
mount -t tmpfs -o nosuid,mode=755 tmpfs "$1"
mount -t tmpfs -o nosuid,mode=755 tmpfs /run
mount -t tmpfs -o nosuid,mode=755 tmpfs /dev/shm
cd "$1"
mkdir -p etc/upper etc/work lib/plugins
mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc/upper,workdir=$1/etc/work" overlay /etc
as -o empty.o /dev/null
link() { # a library that holds nothing: soname, file, and what it needs
	soname=$1 file=$2
	shift 2
	ld -shared -z noexecstack --no-as-needed -soname "$soname" -o "$file" empty.o "$@"
}

# In lib the image has a library too, as in /usr/lib. The folder plugins is the board's alone.
lists=/etc/nvidia-container-runtime/host-files-for-container.d
mkdir -p $lists
for i in $(seq 0 199); do
	folder=$1/lib name=libboard$i.so
	[ $((i % 4)) -lt 3 ] || folder=$1/lib/plugins
	if [ "$i" -lt 60 ]; then
		link "$name.1" "$folder/$name.1.0"
		ln -s "$name.1.0" "$folder/$name.1"
		printf 'lib, %s.1.0\nsym, %s.1\n' "$folder/$name" "$folder/$name"
	else
		link "$name" "$folder/$name"
		printf 'lib, %s\n' "$folder/$name"
	fi
done >$lists/l4t.csv
for i in $(seq 0 4); do
	mkdir -p "share/folder$i"
	: >"share/folder$i/file"
	printf 'dir, %s\n' "$1/share/folder$i"
done >>$lists/l4t.csv
for i in $(seq 0 19); do
	mknod -m 666 "/dev/shm/board$i" c 1 3
	printf 'dev, %s\n' "/dev/shm/board$i"
done >>$lists/l4t.csv
{ # what the floor does: see floor/main.go
	printf 'cache\t%s\n' "$1/ld.so.cache"
	printf 'make\t%s\n' "$1/lib/plugins" "$1/share" /dev/shm
	for folder in "$1/lib" "$1/lib/plugins" "$1/share" /dev/shm; do
		printf 'in\t%s\n' "$folder"
		awk -F ', ' -v "folder=$folder/" 'index($2, folder) == 1 {
			name = substr($2, length(folder) + 1)
			if (name !~ "/") print $1 "\t" name "\t" name ".0"
		}' $lists/l4t.csv
	done
} >floor.plan
cat >/etc/nvidia-container-runtime/config.toml <<END
[nvidia-ctk]
path = "$3/nvidia-ctk"
[nvidia-container-runtime-hook]
path = "$3/nvidia-container-runtime-hook"
[nvidia-container-runtime]
mode = "csv"
runtimes = ["runc"]
END

loader=$(readelf -l /bin/sh | sed -n 's/.*interpreter: \(.*\)]/\1/p')
libraries=$(dirname "$(realpath "$loader")")
image=$1/tmpfs/image
mkdir -p "$image/usr/bin" "$image/usr/lib" "$image/usr/lib64" "$image/etc/ld.so.conf.d" "$image$1/lib"
for name in bin lib lib64; do
	ln -s usr/$name "$image/$name"
done
mkdir -p "$image$libraries"
cp "$loader" "$image$loader"
cp "$2" "$image/usr/bin/program"
cp "$(command -v busybox)" "$image/usr/bin/busybox"
cp $lists/l4t.csv "$image/list"
echo 'include /etc/ld.so.conf.d/*.conf' >"$image/etc/ld.so.conf"
echo "$libraries" >"$image/etc/ld.so.conf.d/image.conf"
link libimage.so "$image$1/lib/libimage.so"
for i in $(seq 0 299); do
	link "libimage$i.so.1" "$image$libraries/libimage$i.so.1"
done
# shellcheck disable=SC2046
link proof.so "$image/usr/lib/proof.so" $(find "$1/lib" -type f)
ldconfig -r "$image"
cat >"$image/usr/bin/show" <<END
while read -r kind path; do
	[ ! -e "\$path" ] && [ ! -L "\$path" ] || echo "has \$path"
done </list
cp /etc/ld.so.cache /
exec $loader --list /usr/lib/proof.so
END
