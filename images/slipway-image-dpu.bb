# Tried: parsed and planned for bluefield2. Not yet built.
require slipway-image-base.bb

SUMMARY = "The base image with FRR, DPDK, the tools of a DPU and what the suites run"
DESCRIPTION = "The rules of FRR become flows in the switch of the DPU. The suites bluefield and dpu \
run on this image."

IMAGE_INSTALL += "packagegroup-slipway-dpu packagegroup-slipway-smoke"
