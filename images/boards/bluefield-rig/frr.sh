# FRR of Debian with our patches of its release, and of its daemons those that route by
# policy and static routes. They run as root: FRR's own user may not open DPDK's ports.
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
apt-get update
# Without /etc/protocols pbrd knows no "match ip-protocol udp".
apt-get -o APT::Sandbox::User=root download netbase
dpkg -x netbase_*.deb /made
apt-get source -o APT::Sandbox::User=root --download-only frr
dpkg-source --no-check -x frr_*.dsc frr
cd frr
release=$(dpkg-parsechangelog -S Version)
case $release in
8.4*) patches=8.4 ;;
9.1*) patches=9.1 ;;
10.3*) patches="10 10.3" ;;
10.*) patches=10 ;;
*) echo "no patches for FRR $release; have 8.4, 9.1 and 10" >&2; exit 1 ;;
esac
for folder in $patches; do
	for patch in /source/files/"$folder"/*.patch; do
		patch --forward -p1 < "$patch"
	done
done
autoreconf -fi
./configure --prefix=/usr --sbindir=/usr/lib/frr --sysconfdir=/etc/frr --localstatedir=/var/run/frr \
	--with-moduledir=/usr/lib/frr/modules --disable-static --disable-doc --disable-bgpd --disable-ripd --disable-ripngd \
	--disable-ospfd --disable-ospf6d --disable-ospfclient --disable-ldpd --disable-nhrpd --disable-eigrpd --disable-babeld \
	--disable-isisd --disable-pimd --disable-pim6d --disable-fabricd --disable-vrrpd --disable-pathd --disable-bfdd \
	--enable-dp-dpdk --enable-user=root --enable-group=root --enable-vty-group=root
make -j"$(nproc)"
make install DESTDIR=/made
