"""The name of a point: `lr=0.001,model.depth=3`.

It can stand in a shell as it is, is a good name for a folder, and two points of one sweep whose values differ never
share it. Numbers are written in their shortest exact form, so 1e-3 and 0.001 are one name. A value that is long or
has odd characters is shortened and ends in `@` and a digest of itself; so does a label that grows too long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from stoker.config.values import scalar, text_of
from stoker.model.digests import digest_value

_SAFE = re.compile(r"[A-Za-z0-9_.+-]{1,40}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+", re.ASCII)
# Paths have neither + nor %, so nothing else is written like this.
_IN_PATHS = str.maketrans({"/": "+", "$": "%"})
_FROM_LABELS = str.maketrans({"+": "/", "%": "$"})
_LONGEST_BYTES = 120
_SHORTENED = 24
_VALUE_DIGITS, _LABEL_DIGITS = 12, 16


def label_of(values: Iterable[tuple[str, Any]]) -> str:
    """Name a point by its paths and values."""
    label = ",".join(f"{path.translate(_IN_PATHS)}={_value_label(value)}" for path, value in values)
    encoded = label.encode()
    if len(encoded) <= _LONGEST_BYTES:
        return label
    kept = encoded[:_LONGEST_BYTES].decode(errors="ignore")
    return f"{kept}@{digest_value('label', label)[:_LABEL_DIGITS]}"


def read_label(label: str) -> dict[str, Any]:
    """Return the values by path that a label names; none if it does not name them all exactly."""
    parts = (part.partition("=") for part in label.split(","))
    values = {path.translate(_FROM_LABELS): scalar(text) for path, _, text in parts}
    return values if label_of(values.items()) == label else {}


def _value_label(value: Any) -> str:
    readable: str = value if type(value) is str else text_of(value)
    if _stands(readable, type(value) is str):
        return readable
    plain = _UNSAFE.sub("_", readable[: 2 * _SHORTENED]).strip("_")[:_SHORTENED]
    return f"{plain}@{digest_value('label', value)[:_VALUE_DIGITS]}"


@lru_cache(maxsize=1024)
def _stands(readable: str, is_text: bool) -> bool:  # noqa: FBT001 - by position it is found again sooner
    """Say whether a value can stand as it is written. Ten thousand points have a few hundred values."""
    # Text that looks like a number or a word of the grammar is not the same as that.
    return _SAFE.fullmatch(readable) is not None and (scalar(readable) is readable) is is_text
