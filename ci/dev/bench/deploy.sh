#!/bin/sh -eu
# bench deploy: a file in memory, and what it becomes on the server.
. ci/dev/bench/functions.sh

case $1 in
setup)
	build_program . ./ci/dev/bench/sender
	memory=$(mktemp -d /dev/shm/slipway-bench-XXXXXX)
	echo "memory=$memory"
	head -c "${mib}M" /dev/urandom >"$memory/local"
	echo "put $memory/local $memory/remote" >"$memory/batch"
	;;
prepare) rm -f "$memory/remote" ;;
check) cmp "$memory/local" "$memory/remote" ;;
end) [ -z "${memory-}" ] || rm -rf "$memory" ;;
esac
