# recipes/slipway-hook builds the same source for OpenEmbedded.
DESCRIPTION = "OCI hook that gives containers the libraries and devices of their board"
HOMEPAGE = "https://github.com/opencontainers/runtime-spec"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0 & MPL-2.0 & BSD-3-Clause & MIT"

# The source is this clone's runtime-hook, so a change to it rebuilds the package. Its
# modules are vendored here: nothing is fetched while it compiles.
FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../..:${LAYERDIR_slipway-isar}/../../recipes/slipway-hook/files:"
GO_PROXY ?= "https://proxy.golang.org"
SRC_URI = " \
    file://runtime-hook \
    file://modules.txt \
    file://slipway-hook.json \
    file://slipway-cdi.service \
    file://slipway-cdi.path \
    file://hook.toml \
    file://rules \
    ${GO_PROXY}/cyphar.com/go-pathrs/@v/v0.2.5.zip;downloadfilename=go-pathrs-0.2.5.zip;subdir=modules;name=pathrs \
    ${GO_PROXY}/github.com/cyphar/filepath-securejoin/@v/v0.7.0.zip;downloadfilename=go-filepath-securejoin-0.7.0.zip;subdir=modules;name=securejoin \
    ${GO_PROXY}/github.com/opencontainers/runtime-spec/@v/v1.3.0.zip;downloadfilename=go-runtime-spec-1.3.0.zip;subdir=modules;name=spec \
    ${GO_PROXY}/github.com/pelletier/go-toml/v2/@v/v2.2.4.zip;downloadfilename=go-toml-2.2.4.zip;subdir=modules;name=toml \
    ${GO_PROXY}/golang.org/x/sys/@v/v0.30.0.zip;downloadfilename=go-sys-0.30.0.zip;subdir=modules;name=sys \
"
SRC_URI[pathrs.sha256sum] = "2b80f10c4c1ed1c2965873b484ece9298c30b49c59a6498ea4287fab5c2b4bf0"
SRC_URI[securejoin.sha256sum] = "601684f1d3cfc8391cbaf7e5973b0485db6a5037426d9cccf47935ca0a4d65dd"
SRC_URI[spec.sha256sum] = "09e58e616eb70f2972ed19ada447dd661b298b39777adb0bbd35c94886bdbdf8"
SRC_URI[toml.sha256sum] = "82162be7b85077f3be49bfe0f1e01f308b9c9554c72a980a22a34432f94885f0"
SRC_URI[sys.sha256sum] = "f5214bfec98f00e5432da68bbece03e98600fa41594ed026556cbde8fcb6f7c9"

inherit dpkg

# Debian 12's own Go is 1.19, and go.mod wants 1.22.
DEBIAN_BUILD_DEPENDS = "golang-go:native (>= 2:1.22)"
DEBIAN_BUILD_DEPENDS:bookworm = "golang-1.23-go:native"
DPKG_ARCH = "any"
S = "${WORKDIR}/source"

do_prepare_build[cleandirs] += "${S}"
do_prepare_build() {
    cp -R '${WORKDIR}/runtime-hook/.' '${S}'
    cd '${WORKDIR}/modules'
    find . -type d -name '*@v*' -prune | while read -r module; do
        vendor='${S}/vendor/'$(echo "$module" | sed 's/@v[^/]*$//')
        install -d "$(dirname "$vendor")"
        cp -R "$module" "$vendor"
    done
    cp '${WORKDIR}/modules.txt' '${S}/vendor/modules.txt'
    install -d '${S}/files'
    for file in slipway-hook.json slipway-cdi.service slipway-cdi.path hook.toml; do
        cp '${WORKDIR}/'$file '${S}/files/'
    done
    deb_debianize
}
