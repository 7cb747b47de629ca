#!/bin/sh -eu
# bench store: two versions of an artifact, a docker-registry, and a server of plain HTTP.
. ci/dev/bench/functions.sh
stop() { # the server that runs
	[ -e "$dir/pid" ] || return 0
	kill "$(cat "$dir/pid")"
	while kill -0 "$(cat "$dir/pid")" 2>/dev/null; do sleep 0.05; done
	rm "$dir/pid"
}

clear() {
	stop
	rm -rf "$dir/registry" "$dir/got" "$dir/folder" "$dir/copy"
}

case $1 in
setup) # the second version has another container
	if ! command -v oras >/dev/null; then
		echo "oras is not in PATH; next: go install oras.land/oras/cmd/oras@v1.2.3" >&2
		exit 1
	fi
	build_program . ./magefiles/slipway
	go build -o "$dir/sender" ./ci/dev/bench/sender
	board=virt arch=amd64
	for version in 1 2; do
		mkdir "$dir/v$version"
		key=0${version}010203040506
		if [ $version = 1 ]; then
			head -c $((mib * 5 / 8 << 20)) /dev/urandom >"$dir/v1/disk.img"
			head -c $((mib * 2 / 8 << 20)) /dev/urandom >"$dir/v1/update.raucb"
		else
			cp "$dir/v1/disk.img" "$dir/v1/update.raucb" "$dir/v2"
		fi
		head -c $((mib / 8 << 20)) /dev/urandom >"$dir/v$version/app.oci.tar"
		write_artifact "$dir/v$version" disk:disk.img bundle:update.raucb container:app.oci.tar
	done
	;;
prepare) # an empty registry, the limit's server or a folder; then no step pays for the one before
	case ${2-} in
	registry)
		clear
		cat >"$dir/config.yml" <<END
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: "$dir/registry"}}
http: {addr: "127.0.0.1:$port"}
END
		env -i PATH="$PATH" docker-registry serve "$dir/config.yml" </dev/null >"$dir/log" 2>&1 &
		;;
	limit)
		clear
		mkdir "$dir/registry"
		"$dir/sender" serve "$port" "$dir/registry" </dev/null >"$dir/log" 2>&1 &
		;;
	folder) clear ;;
	esac
	if [ -n "${!-}" ]; then
		echo $! >"$dir/pid"
		curl -sS -o /dev/null --retry 30 --retry-connrefused --retry-delay 1 "http://127.0.0.1:$port/"
	fi
	sync
	;;
check) diff -r "$dir/got" "$dir/v2" ;;
end) clear ;;
esac
