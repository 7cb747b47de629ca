# Our drivers for Debian's DPDK. Debian leaves the headers for drivers out of its
# package; they are taken from its source, of the same release.
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
apt-get update
apt-get source -o APT::Sandbox::User=root --download-only dpdk
dpkg-source --no-check -x dpdk_*.dsc dpdk
meson setup swflow /source/dpdk-swflow/files -Dbuildtype=release -Ddpdk_source=/build/dpdk
ninja -C swflow
mkdir -p /made/usr/lib/slipway
cp swflow/librte_net_swflow.so /made/usr/lib/slipway/
