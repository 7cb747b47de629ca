# Tried: parsed and dry-run for the boards that ci/TESTED.md names. Not yet built.
require slipway-image-base.bb

SUMMARY = "The base image with containers, an update engine and what the smoke suites run"
DESCRIPTION = "The suites containers and base run on this image. Its update engine switches between \
two root slots."

# Which engine switches the slots is the business of the machine or the distribution.
IMAGE_INSTALL += "packagegroup-slipway-containers packagegroup-slipway-smoke ${SLIPWAY_UPDATE_ENGINE}"
SLIPWAY_UPDATE_ENGINE ??= ""

# What the engine's updates are made of.
IMAGE_FSTYPES:append = " ${SLIPWAY_UPDATE_FSTYPES}"
SLIPWAY_UPDATE_FSTYPES ??= ""
