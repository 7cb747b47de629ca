# Tried with four releases, by package data and files put there by hand. Not yet built.
SUMMARY = "What the container of ci/suite/suites/containers.yml needs of its board: liblzma"

SLIPWAY_CSV = "xz:liblzma"

inherit slipway-csv
