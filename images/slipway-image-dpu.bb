# Tried: parsed and planned for bluefield2. Not yet built.
require slipway-image-base.bb

SUMMARY = "The base image with FRR, DPDK, the tools of a DPU and what the suites run"

IMAGE_INSTALL += "packagegroup-slipway-dpu packagegroup-slipway-smoke"
