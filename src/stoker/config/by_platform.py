"""A value that may be another one on machines of another sort: one text, or a table of platforms.

env    = "uv.lock"
env    = { linux-aarch64 = "requirements-jetson.txt", default = "uv.lock" }
python = { linux-aarch64-cp310 = "/usr/bin/python3", default = "3.11" }
"""

from __future__ import annotations

import re
from typing import Any

from stoker.config.fields import PLAIN, WRONG, Kind, Reading, below, shown
from stoker.config.located import Located
from stoker.model.frozen import frozen_by_position
from stoker.model.platforms import PLATFORM_RULE, is_platform

ANY = ""
"""The key of what holds on machines that nothing else names; in a file it is called `default`."""
_DEFAULT = "default"
_VERSION = re.compile(r"(?:(?:[<>=!~]=?|===)\s*)?\d+(?:\.\d+){0,2}(?:\.\*)?")


@frozen_by_position
class ByPlatform:
    """One value, or a map from platforms to values; read, it is always a map."""

    kind: Kind

    @property
    def says(self) -> str:
        return f"{self.kind.says}, or a map of platforms and such"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        if type(node.value) is not dict:
            value = self.kind.read(node, key, reading)
            return WRONG if value is WRONG else {ANY: value}
        if not node.value:
            return reading.refuse(node, key, "names no platform", f"{_DEFAULT}, or one {PLATFORM_RULE}")
        values = {}
        for name, item in node.value.items():
            inside = below(key, name)
            is_named = name == _DEFAULT or is_platform(name)
            if not is_named:
                hint = f"{PLATFORM_RULE}; {_DEFAULT} for all others"
                reading.refuse(item, inside, f"{shown(name)} is no platform", hint, at_key=True)
            value = self.kind.read(item, inside, reading) if type(item.value) in PLAIN else WRONG
            if is_named and value is not WRONG:
                values[ANY if name == _DEFAULT else name] = value
        return values


def is_version(text: str) -> bool:
    """Say whether a text asks for a version of Python, `3.11` or `>=3.10,<3.13`, and not for a file."""
    return all(_VERSION.fullmatch(part.strip()) for part in text.split(","))
