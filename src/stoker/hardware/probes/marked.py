"""What our own child scripts print: JSON objects on marked lines, whatever else is printed around them."""

from __future__ import annotations

from typing import Any

from stoker.model import json_text

MARK = "stoker-probe:"


def marked_objects(text: str) -> list[dict[str, Any]]:
    """Give the objects of all whole marked lines; anything else is somebody else's noise."""
    found = []
    for line in text.splitlines():
        _, mark, body = line.partition(MARK)
        if mark:
            try:
                value = json_text.loads(body)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found
