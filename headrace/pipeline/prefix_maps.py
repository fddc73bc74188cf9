"""Keep the folders of a build out of what it compiles.

Assertions name the header that they are in. So without this the bytes depend on where the checkout
lies and where Python is installed, and the image names folders of the machine that built it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

SOURCES = "/usr/src/lmcache"


def options(work: Path, environment: Path) -> list[str]:
    """Return the options by which g++ writes other names for three folders.

    ccache must not make paths relative then: no CCACHE_BASEDIR.

    Args:
        work: holds the sources that are compiled.
        environment: the Python environment whose headers are included; those of the Python that it
            is made of follow from this process's.
    """
    return seen_as({work: SOURCES, environment: "/usr", Path(sys.base_prefix): "/usr"})


def seen_as(names: Mapping[Path, str]) -> list[str]:
    """Return the options by which g++ writes the names of folders that `names` has for them."""
    return [f"-ffile-prefix-map={folder}={name}" for folder, name in names.items()]
