#!/bin/sh -eu
# bench layers: a project of 8 repositories, and git's daemon that serves them.
. ci/dev/bench/functions.sh
servers=$top/servers

# make_servers makes 8 repositories, as many as a Jetson's image has, and prints a commit of
# each: 20 behind the branch, as the commits of lock files are. Each has 2,000 recipes and 2,000
# commits of 10 recipes. A recipe has the length of a real one, and compresses about as well.
make_servers() {
	for server in 0 1 2 3 4 5 6 7; do
		git init -q --bare -b main "$servers/r$server"
		cd "$servers/r$server"
		awk -v server="$server" '
			function put(name, text) { printf "M 100644 inline %s\ndata %d\n%s\n", name, length(text), text }
			function hex(n) { n %= 4294967296; return sprintf("%04x%04x", int(n / 65536), n % 65536) }
			function recipe(file, commit,   text, line) {
				text = "SUMMARY = \"recipe " file " of repository " server "\"\nPR = \"r" commit "\"\n"
				for (line = 0; line < 25; line++)
					text = text "SRC_URI[" line ".sha256sum] = \"" hex(file * 2654435761 + line * 40503 + server) hex(line * 2246822519 + file) "\"\n"
				put("meta/recipes-" int(file / 50) "/recipe-" file ".bb", text)
			}
			BEGIN {
				for (commit = 0; commit < 2000; commit++) {
					message = "commit " commit
					printf "commit refs/heads/main\ncommitter bench <bench@localhost> %d +0000\ndata %d\n%s\n", 1700000000 + commit, length(message), message
					if (commit == 0 && server == 0) # kas wants it in one repository
						put("oe-init-build-env", "export BUILDDIR=\"$1\"\n")
					for (i = 0; i < (commit ? 10 : 2000); i++)
						recipe((commit * 7919 + i * (commit ? 31 : 1)) % 2000, commit)
				}
			}' | git fast-import --quiet
		# fast-import advises to pack again: with its own deltas, git needs much time to send a commit.
		git repack -a -d -f -q
		git rev-parse main~20
	done
}

case $1 in
setup)
	build_program . ./magefiles/slipway
	mkdir "$top"
	mount_new_disk "$dir/disk" 8G "$top"
	mkdir "$servers"
	git daemon --detach --pid-file="$servers.pid" --export-all --reuseaddr --base-path="$servers" --listen=127.0.0.1 --port="$port" "$servers"
	mkdir -p "$(dirname "$file")"
	printf 'header: {version: 14}\nmachine: qemuarm64\ndistro: poky\nrepos:\n' >"$file"
	server=0
	for commit in $(make_servers); do
		echo "  r$server: {url: \"git://127.0.0.1:$far/r$server\", branch: main, commit: $commit, layers: {meta: }}" >>"$file"
		server=$((server + 1))
	done
	;;
prepare) # an empty folder; the old one stays until the end, for the reason of mount_new_disk
	aside=$(mktemp -d "$top/aside-XXXXXX")
	[ ! -e "$top/$2" ] || mv "$top/$2" "$aside/was"
	mkdir -p "$top/$2"
	;;
end) [ ! -e "$servers.pid" ] || kill "$(cat "$servers.pid")" ;;
esac
