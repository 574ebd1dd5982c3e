"""The packages of a Python's environment or installation, as they tell about themselves: nothing is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from stoker.host.folders import names_in

_DIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([^-]+)\.dist-info")


def packages_in(prefix: str) -> dict[str, str]:
    """Give the packages below a prefix with their versions, as their folders are called."""
    found = (_DIST.fullmatch(os.path.basename(place)) for place in package_folders(prefix))
    return {one[1].replace("_", "-").lower(): one[2] for one in found if one is not None}


def package_folders(prefix: str) -> Iterator[str]:
    """Give the folders in which packages tell about themselves."""
    for library in (os.path.join(prefix, "lib"), os.path.join(prefix, "local", "lib")):
        for folder in names_in(library):
            for packages in ("site-packages", "dist-packages") if folder.startswith("python3") else ():
                place = os.path.join(library, folder, packages)
                yield from (os.path.join(place, name) for name in names_in(place) if name.endswith(".dist-info"))
