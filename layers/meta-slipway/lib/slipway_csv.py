# SPDX-License-Identifier: MIT
"""Files of packages as lines of a CSV of NVIDIA's container runtime.

A line is a kind, a comma and a path on the board, which may be a glob. A file is a
"lib" and mounted as it is; a link is a "sym": its target is mounted, and the links
that lead there are made anew in the container.
"""
import os
import re

KINDS = ("dev", "dir", "lib", "sym")

_LIBRARY = re.compile(r"\.so(\.[0-9A-Za-z_]+)*$")
_GLOB = re.compile(r"[*?\[\]\\]")


def is_library(path):
    """Whether a file is a shared library by its name: libx.so, libx.so.1.2."""
    return bool(_LIBRARY.search(os.path.basename(path)))


def line(kind, path):
    """One line; a ValueError where the runtimes would read it as something else."""
    if kind not in KINDS:
        raise ValueError("%s, %s: the kind is none of %s" % (kind, path, ", ".join(KINDS)))
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        raise ValueError("%s, %s: the path must be absolute, and lead to one place" % (kind, path))
    if path != path.strip() or any(ord(c) < 32 for c in path):
        raise ValueError("%s, %r: blanks at an end, or control characters, do not survive a CSV" % (kind, path))
    return "%s, %s" % (kind, path)


def of_files(root, paths):
    """The lines for those of a package's files that are libraries.

    root is a folder with the package's files. A link that leads to no file below it is
    left out: the runtimes drop links to folders and into nothing.
    """
    lines = set()
    for path in paths:
        if not is_library(path):
            continue
        if _GLOB.search(path):
            raise ValueError("lib, %s: the runtimes take this name for a pattern" % path)
        kind = _kind(root, path)
        if kind:
            lines.add(line(kind, path))
    return sorted(lines)


def of_extra(text):
    """The lines that a recipe gives itself: "dev, /dev/x" and so on, one a line."""
    lines = []
    for given in (text or "").splitlines():
        if given.strip():
            kind, _, path = given.partition(",")
            lines.append(line(kind.strip(), path.strip()))
    return lines


def _kind(root, path):
    at = root + path
    if not os.path.islink(at):
        return "lib" if os.path.isfile(at) else None
    for _ in range(40):  # as many links as Linux follows
        target = os.readlink(at)
        at = root + target if target.startswith("/") else os.path.join(os.path.dirname(at), target)
        if not os.path.islink(at):
            break
    return "sym" if os.path.isfile(at) else None
