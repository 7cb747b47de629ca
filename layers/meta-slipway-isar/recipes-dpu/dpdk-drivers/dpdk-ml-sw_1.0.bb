DESCRIPTION = "A software device for DPDK's mldev, with models of dense layers"

require dpdk-driver.inc

python () {
    if d.getVar('BASE_DISTRO_CODENAME') == 'bookworm':
        raise bb.parse.SkipRecipe('the DPDK of Debian 12 has no mldev: use debian-trixie')
}
