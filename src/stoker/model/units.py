"""Sizes and durations between people and programs. Inside, sizes are integer bytes and durations are seconds."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_SECONDS_ONLY = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d|w)\s*)+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.ASCII)

_SIZE_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """Read `6GiB`, `500 MB` (decimal), `10G` (binary, as tools do) or plain bytes."""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        message = f"{text!r} is not a size; write for example 500MB, 6GiB or 10G"
        raise ValueError(message)
    # Integers throughout: as floats, 1.001 kB is 1000 bytes.
    whole, _, fraction = match[1].partition(".")
    parts: int = 10 ** len(fraction)
    return int(whole + fraction) * factor // parts


def format_size(size_bytes: int) -> str:
    """Write a size for people, in binary units that are named as such."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def parse_duration(text: str) -> float:
    """Read `90`, `90s`, `2h`, `1h30m` or `7d` as seconds."""
    plain = text.strip().lower()
    if _SECONDS_ONLY.fullmatch(plain):
        return float(plain)
    if not _DURATION.fullmatch(plain):
        message = f"{text!r} is not a duration; write for example 90s, 15m, 2h or 7d"
        raise ValueError(message)
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(plain))


def format_duration(seconds: float) -> str:
    """Write a duration for people: `0.4s`, `12s`, `1m52s`, `2h05m`, `3d04h`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
