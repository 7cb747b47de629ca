# Makes two servers in the folder $1, with two commits each, and prints the commits. In the
# second one every other file differs, and files come and go.
for server in r0 r1; do
	git init -q -b main "$1/$server"
	cd "$1/$server"
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
		git rev-parse HEAD
	done
done
