# Parsed with meta-tegra. NVIDIA's libraries were not at hand to build it.
SUMMARY = "TensorRT's runtime, for containers"
DESCRIPTION = "Images of NVIDIA's for JetPack 5 and later bring these libraries along; smaller \
images take the board's."
SECTION = "libs"

SLIPWAY_CSV = "tensorrt-core tensorrt-plugins-prebuilt"

require ../csv.inc

# From JetPack 7 on the parts that only build engines are packages of their own, one
# a kind of GPU. Containers that build engines need NVIDIA's image.
