# Compiles a Go program without C by Go's own release (slipway-go-native), in place of
# go-mod, where Yocto's Go is too old. It needs no C compiler and no libraries. The
# recipe says GO_IMPORT and GO_EXTRA_LDFLAGS as it does for go-mod; its modules are in
# the source's vendor folder.
inherit goarch

INHIBIT_DEFAULT_DEPS = "1"
DEPENDS += "slipway-go-native"
B = "${WORKDIR}/build"

SLIPWAY_GO = "${STAGING_LIBDIR_NATIVE}/slipway-go"

do_configure[noexec] = "1"
do_compile() {
	cd ${S}/src/${GO_IMPORT}
	# Nothing of the caller's settings, and nothing from the network.
	env -i PATH="${SLIPWAY_GO}/bin" HOME="${B}" GOROOT="${SLIPWAY_GO}" \
		GOPATH="${B}/path" GOCACHE="${B}/cache" GOTMPDIR="${B}/tmp" \
		GOENV=off GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-mod=vendor \
		CGO_ENABLED=0 GOOS="${TARGET_GOOS}" GOARCH="${TARGET_GOARCH}" GOARM="${TARGET_GOARM}" \
		go build -trimpath -buildvcs=false -ldflags "-s -w ${GO_EXTRA_LDFLAGS}" -o "${B}/${GO_BUILD_BINDIR}/" .
}
do_compile[cleandirs] = "${B}"
do_compile[dirs] = "${B}/tmp ${B}"

# Go's linker knows nothing of Yocto's flags, and has stripped the program.
INSANE_SKIP:${PN} += "ldflags already-stripped"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
