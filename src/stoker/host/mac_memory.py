"""How much memory a Mac has left, as its own `vm_stat` counts it. Written from published outputs; untested on a Mac."""

from __future__ import annotations

import re
import subprocess

_PROGRAM = "/usr/bin/vm_stat"
_LIMIT_S = 2.0
_PAGE = re.compile(r"page size of (\d{1,9}) bytes")
_COUNT = re.compile(r"^Pages (free|inactive|speculative):\s+(\d{1,15})\.?\s*$", re.MULTILINE)


def mac_available_bytes() -> int | None:
    """Ask for what can be used now without pushing anybody out; nothing without an answer in 2 s."""
    try:
        said = subprocess.run([_PROGRAM], capture_output=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return read_vm_stat(said.stdout.decode("utf-8", "replace"))


def read_vm_stat(text: str) -> int | None:
    """Return the bytes in pages that are free, were read ahead, or were not used for a while; nothing if it is cut off.

    What is read ahead is counted apart from what is free, and both can be taken.
    """
    page = _PAGE.search(text)
    counts = dict(_COUNT.findall(text))
    if page is None or not counts.keys() >= {"free", "inactive"}:
        return None
    return sum(map(int, counts.values())) * int(page[1])
