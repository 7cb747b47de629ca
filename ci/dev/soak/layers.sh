# The soak of layers checkout, in the folder $1, with the project file $2.
cd "$1"
case $3 in
servers) # two servers with two commits each. In the second one every other file differs, and files come and go
	mkdir -p "$(dirname "$2")"
	for server in r0 r1; do
		git init -q -b main $server
		cd $server
		for round in 0 1; do
			rm -rf recipes-*
			for n in $(seq 0 99); do
				dir=recipes-$((n % 2))/$((n / 20)) name=recipe-$n.bb
				[ $((n % 7)) != 0 ] || name=$name-$round dir=$dir/$round
				mkdir -p "$dir"
				echo "SUMMARY = \"recipe $n of $server in $((round * (n % 2)))\"" >"$dir/$name"
			done
			git add -A
			git -c user.name=soak -c user.email=soak@localhost commit -q -m commit
		done
		cd ..
	done
	;;
begin) # the project of round $4, with a patch: from an empty folder, to later commits, back to the first ones
	[ "$4" != 0 ] || rm -rf build
	printf 'header: {version: 14}\nmachine: m\nrepos:\n  here: {}\n' >"$2"
	for server in r0 r1; do
		commit=$(git -C $server rev-parse "main~$((($4 + 1) % 2))")
		echo "  $server: {url: \"$PWD/$server\", commit: $commit, patches: {fix: {repo: here, path: fix.patch}}}" >>"$2"
	done
	printf -- '--- /dev/null\n+++ b/recipes-0/fix.bb\n@@ -0,0 +1 @@\n+SUMMARY = "fixed in %s"\n' "$4" >"$(dirname "$2")/fix.patch"
	;;
state) # each checkout's commit and the state of its files, and a digest of each file. Times and
	# packs differ in git's folders, and the content of the cache depends on when it was fetched.
	for tree in build/*/layers/r*; do
		echo "$tree"
		git -C "$tree" rev-parse HEAD
		git -C "$tree" status --porcelain --ignored
		git -C "$tree" fsck --connectivity-only --no-dangling
	done
	find build '(' -name .git -o -name cache ')' -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
	;;
esac
