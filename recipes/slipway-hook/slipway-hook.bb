# Tried with kirkstone: compiled for arm64, by Go 1.22.12 of slipway-go-native. With
# scarthgap and wrynose: fetched and unpacked; with master: parsed.
SUMMARY = "OCI hook that gives containers the libraries and devices of their board"
DESCRIPTION = "Reads NVIDIA's CSV files on the board and injects what they list into \
containers that ask for it."
SECTION = "console/utils"
# Ours is Apache-2.0; the binary is static, so its modules' and Go's licences count too.
LICENSE = "Apache-2.0 ${SLIPWAY_AND} MPL-2.0 ${SLIPWAY_AND} BSD-3-Clause ${SLIPWAY_AND} MIT"
# master warns of "&", which the releases want.
SLIPWAY_AND = "${@'AND' if 'blacksail' in d.getVar('LAYERSERIES_CORENAMES').split() else '&'}"
LIC_FILES_CHKSUM = " \
    file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10 \
    file://src/${GO_IMPORT}/vendor/cyphar.com/go-pathrs/COPYING;md5=f75d2927d3c1ed2414ef72048f5ad640 \
    file://src/${GO_IMPORT}/vendor/github.com/cyphar/filepath-securejoin/LICENSE.MPL-2.0;md5=f75d2927d3c1ed2414ef72048f5ad640 \
    file://src/${GO_IMPORT}/vendor/github.com/cyphar/filepath-securejoin/LICENSE.BSD;md5=7e05df0b39896d74600ef94ab46dce89 \
    file://src/${GO_IMPORT}/vendor/github.com/opencontainers/runtime-spec/LICENSE;md5=b355a61a394a504dacde901c958f662c \
    file://src/${GO_IMPORT}/vendor/github.com/pelletier/go-toml/v2/LICENSE;md5=390892c6562af0d807e527b06d635f94 \
    file://src/${GO_IMPORT}/vendor/golang.org/x/sys/LICENSE;md5=7998cb338f82d15c0eff93b7004d272a \
"

PV = "0.1"

# The source is this clone's runtime-hook, so a change to it rebuilds the image.
# Its modules come from their repositories: nothing is fetched while it compiles.
# modules.txt is what "go mod vendor" writes; images/recipes_test.go compares both.
FILESEXTRAPATHS:prepend := "${THISDIR}/../..:"
HOOK_SRC = "${BP}/src/slipway/runtime-hook"
SRC_URI = " \
    file://runtime-hook;subdir=${BP}/src/slipway \
    file://modules.txt;subdir=${HOOK_SRC}/vendor \
    file://slipway-hook.json \
    file://slipway-cdi.service \
    file://slipway-cdi.path \
    file://hook.toml \
    git://github.com/cyphar/libpathrs;protocol=https;branch=main;name=pathrs;subpath=go-pathrs;destsuffix=${HOOK_SRC}/vendor/cyphar.com/go-pathrs \
    git://github.com/cyphar/filepath-securejoin;protocol=https;branch=main;name=securejoin;destsuffix=${HOOK_SRC}/vendor/github.com/cyphar/filepath-securejoin \
    git://github.com/opencontainers/runtime-spec;protocol=https;branch=main;name=spec;destsuffix=${HOOK_SRC}/vendor/github.com/opencontainers/runtime-spec \
    git://github.com/pelletier/go-toml;protocol=https;branch=v2;name=toml;destsuffix=${HOOK_SRC}/vendor/github.com/pelletier/go-toml/v2 \
    git://github.com/golang/sys;protocol=https;branch=master;name=sys;destsuffix=${HOOK_SRC}/vendor/golang.org/x/sys \
"
SRCREV_pathrs = "080908395e75a32a5c4dbe9b318bf93643429f9f"
SRCREV_securejoin = "8096a959c5d7a248976a3531a030f5c4da0a44d0"
SRCREV_spec = "92249139eea7161e13745abd4cb6d0ea02a3227a"
# v2.2.4 as meta-virtualization's recipes have it; not yet fetched by this one.
SRCREV_toml = "ee07c9203b72060f12e31c04ace80e8a187d5a67"
SRCREV_sys = "863b3c4ac4975ff758815fa8d01acb6771f37177"
SRCREV_FORMAT = "securejoin"

GO_IMPORT = "slipway/runtime-hook"
GO_INSTALL = "${GO_IMPORT}"

# go.mod wants Go 1.22, which Yocto has from 5.0 on. There is a layer with a newer Go
# for 4.0, meta-lts-mixins, but it changes the Go of all other recipes as well.
SLIPWAY_GO_CLASS = "${@'slipway-go' if d.getVar('LAYERSERIES_CORENAMES') == 'kirkstone' else 'go-mod'}"
inherit ${SLIPWAY_GO_CLASS} systemd

# A static binary: containers' mounts are no place to look for a C library.
CGO_ENABLED = "0"
GO_LINKSHARED = ""
GOBUILDFLAGS:remove = "-buildmode=pie"
GO_EXTRA_LDFLAGS = "-X main.version=${PV}"
export GOFLAGS = "-mod=vendor"

# Where SRC_URI puts files: Yocto 5.1 has a folder of its own for them.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
do_install() {
	install -D -m 0755 ${B}/${GO_BUILD_BINDIR}/runtime-hook ${D}${bindir}/slipway-hook
	install -D -m 0644 ${SLIPWAY_FILES}/hook.toml ${D}${sysconfdir}/slipway/hook.toml
	ln -s slipway-hook ${D}${bindir}/slipway-runtime
	install -D -m 0644 ${SLIPWAY_FILES}/slipway-hook.json ${D}${datadir}/containers/oci/hooks.d/slipway-hook.json
	install -d ${D}${systemd_system_unitdir}
	install -m 0644 ${SLIPWAY_FILES}/slipway-cdi.service ${SLIPWAY_FILES}/slipway-cdi.path ${D}${systemd_system_unitdir}
}

SYSTEMD_SERVICE:${PN} = "slipway-cdi.service slipway-cdi.path"
FILES:${PN} += "${datadir}/containers"
CONFFILES:${PN} = "${sysconfdir}/slipway/hook.toml"
