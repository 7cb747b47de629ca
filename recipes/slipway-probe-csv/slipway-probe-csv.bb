# Tried with four releases, by package data and files put there by hand. Not yet built.
SUMMARY = "What the workload containers needs of its board: liblzma"
DESCRIPTION = "The suite containers starts a container that has no liblzma of its own. This list gives it \
the one of the board."
SECTION = "libs"

SLIPWAY_CSV = "xz:liblzma"

inherit slipway-csv
