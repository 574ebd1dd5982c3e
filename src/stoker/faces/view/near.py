"""Paths as short as somebody can type them."""

from __future__ import annotations

import os


def near_path(path: str, folder: str) -> str:
    """Give a path as short as it can be typed from a folder."""
    relative = os.path.relpath(path, folder)
    return path if relative.startswith("..") else relative
