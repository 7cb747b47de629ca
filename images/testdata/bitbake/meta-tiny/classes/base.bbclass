addtask fetch
addtask compile after do_fetch
addtask deploy after do_compile
addtask build after do_deploy
do_build[recrdeptask] += "do_deploy"
do_fetch() {
	echo fetching
}
do_compile() {
	${COMPILE}
}
do_deploy() {
	:
}
do_build() {
	:
}
do_build[noexec] = "1"
COMPILE ?= "sleep 0.1"
