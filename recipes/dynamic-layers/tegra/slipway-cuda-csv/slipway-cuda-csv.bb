# Parsed with meta-tegra. NVIDIA's libraries were not at hand to build it.
SUMMARY = "CUDA's libraries, for containers"
DESCRIPTION = "Images of NVIDIA's for JetPack 5 and later bring these libraries along; smaller \
images take the board's."
SECTION = "libs"

SLIPWAY_CSV = "cuda-cudart cuda-nvrtc libcublas libcufft libcurand libcusolver libcusparse libnpp"

require ../csv.inc
