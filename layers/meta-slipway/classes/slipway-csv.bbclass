# A package with a CSV file that gives containers the libraries of other recipes'
# packages, which stay as they are: changing them would build them anew.
#
#   SLIPWAY_CSV = "xz:liblzma cudnn"     recipe:package, or what is both
#   SLIPWAY_CSV_EXTRA = "dev, /dev/nvmap\ndir, /etc/vulkan"
#
# The package brings the libraries along. slipway-hook reads every CSV; NVIDIA's own
# runtime, since version 1.10, only l4t.csv, drivers.csv and devices.csv, unless the
# container has NVIDIA_REQUIRE_JETPACK=csv-mounts=all.
SLIPWAY_CSV ??= ""
SLIPWAY_CSV_EXTRA ??= ""
SLIPWAY_CSV_LIB = "${@bb.utils.which(d.getVar('BBPATH'), 'lib/slipway_csv.py')}"

LICENSE ?= "MIT"
LIC_FILES_CHKSUM ?= "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
B = "${WORKDIR}/build"

INHIBIT_DEFAULT_DEPS = "1"
PACKAGE_ARCH = "${MACHINE_ARCH}"

do_configure[noexec] = "1"

python () {
    pairs = [(p.partition(":")[0], p.rpartition(":")[2]) for p in d.getVar("SLIPWAY_CSV").split()]
    for recipe, package in pairs:
        d.appendVar("DEPENDS", " " + recipe) # its files, in the sysroot
        d.appendVarFlag("do_compile", "depends", " %s:do_packagedata" % recipe)
        d.appendVar("RDEPENDS:" + d.getVar("PN"), " " + package)
}

python do_compile() {
    import importlib.util, json, os
    import oe.packagedata
    spec = importlib.util.spec_from_file_location("slipway_csv", d.getVar("SLIPWAY_CSV_LIB"))
    csv = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(csv)

    lines = csv.of_extra(d.expand(d.getVar("SLIPWAY_CSV_EXTRA").replace("\\n", "\n")))
    for pair in d.getVar("SLIPWAY_CSV").split():
        package = pair.rpartition(":")[2]
        files = json.loads(oe.packagedata.read_subpkgdata_dict(package, d).get("FILES_INFO", "{}"))
        found = csv.of_files(d.getVar("RECIPE_SYSROOT"), files)
        if not found:
            bb.fatal("package %s has no shared library in the sysroot; correct SLIPWAY_CSV in %s" % (package, d.getVar("FILE")))
        lines += found
    with open(os.path.join(d.getVar("B"), "lines.csv"), "w") as f:
        f.write("".join(line + "\n" for line in sorted(set(lines))))
}
do_compile[dirs] = "${B}"
do_compile[file-checksums] += "${SLIPWAY_CSV_LIB}:True"

do_install() {
	install -D -m 0644 ${B}/lines.csv ${D}${sysconfdir}/nvidia-container-runtime/host-files-for-container.d/${PN}.csv
}
