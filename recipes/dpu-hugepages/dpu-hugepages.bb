# Tried with scarthgap: its licence proved (../TESTED.md); not built.
SUMMARY = "Memory set aside in huge pages for DPDK"
DESCRIPTION = "systemd mounts /dev/hugepages by itself; the pages are taken at boot, while memory \
is still whole."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

# In MiB, of all huge pages together, which are of 2 MiB where the kernel's pages are of
# 4 KiB. 2 GiB is what the two posts of 2022 give DPDK; a BlueField has at least 8.
SLIPWAY_HUGEPAGES_MIB ??= "2048"

inherit allarch
INHIBIT_DEFAULT_DEPS = "1"
do_configure[noexec] = "1"
do_compile[noexec] = "1"

python () {
    mib = d.getVar('SLIPWAY_HUGEPAGES_MIB')
    if not mib.isdigit() or int(mib) % 2 or not 2 <= int(mib) <= 1048576:
        bb.fatal('SLIPWAY_HUGEPAGES_MIB is "%s"; write an even number of MiB from 2 to 1048576' % mib)
    d.setVar('SLIPWAY_HUGEPAGES', str(int(mib) // 2))
}

do_install() {
	install -d ${D}${nonarch_libdir}/sysctl.d
	printf '# %s MiB in pages of 2 MiB.\nvm.nr_hugepages = %s\n' ${SLIPWAY_HUGEPAGES_MIB} ${SLIPWAY_HUGEPAGES} > ${D}${nonarch_libdir}/sysctl.d/50-dpu-hugepages.conf
}
FILES:${PN} = "${nonarch_libdir}/sysctl.d"
