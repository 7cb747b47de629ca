# FRR of Debian with our patches of its release, as debian.txt says: which patches,
# and what is run in the unpacked source.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
say() { sed -n "s/^$1 //p" /source/debian.txt; }
folders=$(say "release $release" | cut -d' ' -f3-)
if [ -z "$folders" ]; then
	echo "debian.txt names no patches for Debian $release" >&2
	exit 1
fi

# Its daemons run as a user of their own, which comes with Debian's package of it.
groupadd --system frrvty
useradd --system --user-group --groups frrvty --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin frr
mkdir /made/etc
cp -a /etc/passwd /etc/group /etc/shadow /etc/gshadow /made/etc/

# What a check gives FRR, to see what becomes of it.
install -D -m 0644 /source/rules.txt /made/usr/share/slipway/frr-rules.txt

sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
apt-get update
apt-get source -o APT::Sandbox::User=root --download-only frr
dpkg-source --no-check -x frr_*.dsc frr
mkdir patches
for folder in $folders; do
	cp /source/"$folder"/*.patch patches
done
cd frr
for patch in ../patches/*.patch; do
	patch -p1 -F0 < "$patch"
done
say run | while read -r line; do
	case $line in
	./configure\ *) line="$line $(say "$release-configure")" ;;
	make\ install) line="make install DESTDIR=/made" ;;
	esac
	echo "$line"
	$line < /dev/null
done
