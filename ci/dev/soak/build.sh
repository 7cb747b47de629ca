# The soak of build, in the folder $1, with the project file $2. bitbake's clone is $3, and the
# board's built files are in $4.
case $5 in
clone) # a small layer, which the real bitbake builds in seconds
	cp -r images/testdata/bitbake/meta-tiny "$1"
	mkdir -p "$(dirname "$2")"
	cat >"$2" <<END
header: {version: 14}
machine: qemuarm64
target: tiny-image
repos:
  meta-tiny: {path: "$1/meta-tiny"}
  bitbake: {url: "$3", commit: $(git -C "$3" rev-parse HEAD), layers: {}}
END
	;;
begin) # round $6: without all that was built, without all except shared state, or with another recipe
	version=$(($6 / 2))
	printf 'SUMMARY = "a, of round %s"\nCOMPILE = "echo %s; sleep 0.2"\n' $version $version >"$1/meta-tiny/recipes/liba.bb"
	case $6 in
	0) rm -rf "$4/bitbake" "$1/build/sstate-cache" ;;
	1) rm -rf "$4/bitbake/tmp" ;;
	esac
	;;
esac
