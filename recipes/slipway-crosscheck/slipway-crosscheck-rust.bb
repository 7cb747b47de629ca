# Parsed, not built. Isar compiles the same source.
SUMMARY = "A Rust program that tries what breaks on another machine"
DESCRIPTION = "It tries unwinding, threads, calls of C, numbers of 128 bits and numbers as text, and compares \
each result. The workload programs runs it."
HOMEPAGE = "https://doc.rust-lang.org/rustc/platform-support.html"
SECTION = "devel"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

PV = "0.1"

SRC_URI = "file://slipway-crosscheck-rust"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/slipway-crosscheck-rust"

inherit cargo
