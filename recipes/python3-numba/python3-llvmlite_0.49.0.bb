# Parsed and planned by bitbake, which fetched and unpacked its source. Nothing was built.
SUMMARY = "Python's access to LLVM, for Numba"
DESCRIPTION = "Numba compiles Python's functions by it. Each release is for one version of LLVM."
HOMEPAGE = "https://llvmlite.readthedocs.io"
SECTION = "devel/python"
LICENSE = "BSD-2-Clause & Apache-2.0"
LIC_FILES_CHKSUM = " \
    file://LICENSE;md5=57c7cdf8c8d2dcbc7528fe68e52b3a17 \
    file://LICENSE.thirdparty;md5=6942af3a9e3217451aceefd9432a6398 \
"

DEPENDS = "llvm ninja-native"

SRC_URI = "git://github.com/numba/llvmlite.git;protocol=https;branch=release0.49"
SRCREV = "b5a0ba74ae0601806c0ac3964d746f6be5f6d7b4"
TAG = "v${PV}"

# cmake makes the file with the toolchain; setuptools3 has the tasks.
inherit cmake setuptools3
require numba.inc

export CMAKE_ARGS = "-DCMAKE_TOOLCHAIN_FILE=${WORKDIR}/toolchain.cmake"
export LLVMLITE_SHARED = "ON"
