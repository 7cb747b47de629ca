# Our drivers for Debian's DPDK, those that the board names. Debian leaves the headers for
# drivers out of its package; they are taken from its source, or from the user's if that is
# of the same release.
release=$(pkg-config --modversion libdpdk | cut -d. -f1,2)
if grep -qs "^$release\." /source/given/VERSION; then
	ln -s /source/given dpdk
else
	sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
	apt-get update
	if ! apt-get source -o APT::Sandbox::User=root --download-only dpdk; then
		echo "no source of DPDK to be had; name an unpacked one of $release with SLIPWAY_DPDK" >&2
		exit 1
	fi
	dpkg-source --no-check -x dpdk_*.dsc dpdk
fi
mkdir -p /made/usr/lib/slipway
for driver in /source/dpdk-*; do
	made=${driver##*/}
	meson setup "$made" "$driver/files" -Dbuildtype=release -Ddpdk_source=/build/dpdk
	ninja -C "$made"
	cp "$made"/librte_*.so /made/usr/lib/slipway/
done

# A model, its input and its answer, a wrong answer, and the file that names them for the suite.
if [ -e dpdk-ml-sw ]; then
	models=/made/usr/share/slipway/ml_sw
	mkdir -p $models
	dpdk-ml-sw/ml-sw-example $models
	cp $models/input.bin $models/wrong.bin
	truncate --size="$(stat --format=%s $models/reference.bin)" $models/wrong.bin
	mkdir -p /made/etc/slipway
	sed s,/usr/lib/dpdk-slipway/,/usr/lib/slipway/, /source/dpdk-ml-sw/files/mldev.conf > /made/etc/slipway/mldev.conf
fi
