do_compile[depends] = "liba:do_share libb:do_share libc:do_share"
do_deploy() {
	mkdir -p ${DEPLOY_DIR_IMAGE}
	head -c 4096 /dev/zero > ${DEPLOY_DIR_IMAGE}/${PN}-${MACHINE}-20260101.wic.gz
	ln -sfn ${PN}-${MACHINE}-20260101.wic.gz ${DEPLOY_DIR_IMAGE}/${PN}-${MACHINE}.wic.gz
}
