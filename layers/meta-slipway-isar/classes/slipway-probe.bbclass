# The image oci.tar is the container that the suite containers runs: a program of the image,
# its loader and its C library, but not the liblzma.so.5 that the program needs. That comes
# from the board, by slipway-hook.
FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../images/boards/virt:"
IMAGE_SRC_URI:oci_tar = "file://container"
SLIPWAY_PROBE_FILES ?= "usr/bin/xz usr/lib/*/libc.so.6 usr/lib*/ld-linux*.so.*"

IMAGE_CMD:oci_tar() {
    rm -rf '${WORKDIR}/probe'
    mkdir -p '${WORKDIR}/probe/root/usr' '${WORKDIR}/probe/oci/blobs/sha256'
    cp -R '${WORKDIR}/container/.' '${WORKDIR}/probe/root/'
    # The loader is an absolute link, which cp would follow to this machine's own.
    cd '${IMAGE_ROOTFS}'
    for file in ${SLIPWAY_PROBE_FILES}; do
        at=$file
        while link=$(readlink "$at"); do
            case $link in
            /*) at=.$link ;;
            *) at=$(dirname "$at")/$link ;;
            esac
        done
        install -D -m 755 "$at" '${WORKDIR}/probe/root/'"$file"
    done
    for dir in bin lib lib64; do # as merged-/usr systems have them
        ln -s usr/$dir '${WORKDIR}/probe/root/'$dir
    done
    chmod -R u=rwX,go=rX '${WORKDIR}/probe/root'
    tar -C '${WORKDIR}/probe/root' --sort=name --owner=0 --group=0 --numeric-owner --mtime=@${SOURCE_DATE_EPOCH} -cf '${WORKDIR}/probe/blob' .

    # Moves the file blob to its place among the blobs, and says what describes it.
    probe_blob() {
        local sum size
        sum=$(sha256sum '${WORKDIR}/probe/blob' | cut -d' ' -f1)
        size=$(stat -c %s '${WORKDIR}/probe/blob')
        mv '${WORKDIR}/probe/blob' '${WORKDIR}/probe/oci/blobs/sha256/'$sum
        printf '"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s' "$1" "$sum" "$size"
    }
    layer=$(probe_blob layer.v1.tar)
    digest=$(printf %s "$layer" | sed 's/.*"digest":\("[^"]*"\).*/\1/')
    platform='"architecture":"${DISTRO_ARCH}","os":"linux"'
    printf '{%s,"rootfs":{"type":"layers","diff_ids":[%s]}}' "$platform" "$digest" >'${WORKDIR}/probe/blob'
    config=$(probe_blob config.v1+json)
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{%s},"layers":[{%s}]}' "$config" "$layer" >'${WORKDIR}/probe/blob'
    manifest=$(probe_blob manifest.v1+json)
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{%s,"platform":{%s},"annotations":{"io.containerd.image.name":"slipway/probe:latest","org.opencontainers.image.ref.name":"latest"}}]}' \
        "$manifest" "$platform" >'${WORKDIR}/probe/oci/index.json'
    printf '{"imageLayoutVersion":"1.0.0"}' >'${WORKDIR}/probe/oci/oci-layout'
    tar -C '${WORKDIR}/probe/oci' --sort=name --owner=0 --group=0 --numeric-owner --mtime=@${SOURCE_DATE_EPOCH} -cf '${IMAGE_FILE_HOST}' oci-layout index.json blobs
}
