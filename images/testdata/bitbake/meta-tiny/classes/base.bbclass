addtask fetch
addtask compile after do_fetch
addtask share after do_compile
addtask share_setscene
addtask deploy after do_share
addtask build after do_deploy
do_build[recrdeptask] += "do_deploy"
do_fetch() {
	echo fetching
}
do_compile() {
	${COMPILE}
}
# The shared state of this layer is a file of one word for each task that made it.
SHARED = "${SSTATE_DIR}/${PN}-${BB_UNIHASH}"
SHARED[vardepvalue] = ""
do_share[vardepsexclude] += "SHARED"
do_share() {
	mkdir -p ${SSTATE_DIR}
	echo whole > ${SHARED}
}
do_share_setscene[vardepsexclude] += "SHARED"
do_share_setscene() {
	echo unpacking the shared state
	grep whole ${SHARED}
}
do_deploy() {
	:
}
do_build() {
	:
}
do_build[noexec] = "1"
COMPILE ?= "sleep 0.1"

BB_HASHCHECK_FUNCTION = "tiny_shared"
def tiny_shared(sq_data, d, siginfo=False, currentcount=0, **kwargs):
    def shared(tid):
        pn = os.path.basename(tid.split(":do_")[0])[:-len(".bb")]
        return os.path.join(d.getVar("SSTATE_DIR"), pn + "-" + sq_data["unihash"][tid])
    return set(tid for tid in sq_data["hash"] if os.path.exists(shared(tid)))
