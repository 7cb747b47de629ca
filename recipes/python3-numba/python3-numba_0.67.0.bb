# Parsed and planned by bitbake. No whole copy of its source was at hand.
SUMMARY = "Compiler of Python's functions for processors and GPUs"
DESCRIPTION = "The workload numba proves it on a GPU. CUDA's libnvvm and libdevice must be on the board."
HOMEPAGE = "https://numba.pydata.org"
SECTION = "devel/python"
LICENSE = "BSD-2-Clause"
LIC_FILES_CHKSUM = "file://LICENSE;md5=d9bed34136e8491d5d792c7efc17f10c"

DEPENDS = "python3-numpy python3-numpy-native"

SRC_URI = "git://github.com/numba/numba.git;protocol=https;branch=release0.67"
SRCREV = "3190b91b3dccd797c3382aaf7988ff8eb3079f79"
TAG = "${PV}"

inherit setuptools3
require numba.inc

export NUMBA_DISABLE_TBB = "1"
export NUMBA_DISABLE_OPENMP = "1"

RDEPENDS:${PN} = "python3-core python3-llvmlite python3-numpy"
