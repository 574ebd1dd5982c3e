"""Single values as vendors' tools print them, and as they print that they have none."""

from __future__ import annotations

import re

from stoker.model.printable import one_line

_ABSENT = frozenset(
    {
        "", "-", "n/a", "na", "none", "null", "unknown", "unknown error", "not supported", "not available",
        "not found", "insufficient permissions", "no permission", "requested functionality has been deprecated",
        "gpu requires reset", "gpu is lost", "error",
    }
)  # fmt: skip
# Thousands may be set apart by a space, also by one that does not break.
_SIZE = re.compile(r"(\d{1,3}(?:[\s\u00a0\u202f]\d{3})+|\d+)(?:\.0+)?\s*([a-z]*)", re.IGNORECASE)
_FACTORS = {
    "b": 1, "bytes": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "kio": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "mio": 1 << 20, "mo": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "gio": 1 << 30, "go": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40, "tio": 1 << 40, "to": 1 << 40,
}  # fmt: skip
_MOST_BYTES = 1 << 50
_MOST_DIGITS = 20
_LONGEST = 200


def is_absent(text: str) -> bool:
    """Whether a tool says that it has no value: empty, `[N/A]`, `[Insufficient Permissions]` and the like."""
    return text.strip().strip("[]<>()").strip().lower() in _ABSENT


def text_cell(text: object) -> str:
    """Give a text that is safe to show, empty if there is none."""
    return "" if not isinstance(text, str) or is_absent(text) else one_line(text, _LONGEST)


def size_cell(text: str, *, unit: str = "mib") -> int | None:
    """Give a size in bytes, `None` if the tool has none. Raises `ValueError` for what is neither.

    All units are binary, whatever they are called: so these tools count. `unit` is meant where none is printed.
    """
    if is_absent(text):
        return None
    found = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get((found[2] or unit).lower()) if found else None
    if found is None or factor is None or len(found[1]) > _MOST_DIGITS:
        raise ValueError(f"not a size: {text[:40]!r}")
    size_bytes = int(re.sub(r"\D", "", found[1])) * factor
    if size_bytes > _MOST_BYTES:
        raise ValueError(f"no device has that much memory: {text[:40]!r}")
    return size_bytes


def bytes_value(value: object) -> int | None:
    """Give a number of bytes out of JSON, `None` if it is not one that can be."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= _MOST_BYTES else None  # type: ignore[operator,return-value]


def count_value(value: object) -> int | None:
    """Give a small number out of JSON, such as an index, or `None`."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1 << 31 else None  # type: ignore[operator,return-value]
