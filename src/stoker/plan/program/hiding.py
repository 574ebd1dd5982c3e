"""Secrets kept out of what programs print: each value, and what it looks like in common encodings, becomes `***`.

Bytes are taken as they come. What may be the beginning of a secret is held back until it is known to be none, so that
no border between two pieces lets one through.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from stoker.model.json_text import dumps

MASK = b"***"
_SHORTEST = 4
_LINE_LEAST = 12
"""A line of a secret of several lines is one of its own if it is as long as this."""


class Hiding:
    """Hides some values in one stream of bytes. Without values it changes and keeps nothing."""

    def __init__(self, values: Iterable[str]) -> None:
        patterns = sorted({one for value in values for one in _looks_of(value)}, key=len, reverse=True)
        self._patterns = tuple(patterns)
        self._longest = len(patterns[0]) if patterns else 0
        self._any = re.compile(b"|".join(map(re.escape, patterns))) if patterns else None
        starts = b"".join(re.escape(bytes((first,))) for first in sorted({one[0] for one in patterns}))
        self._start = re.compile(b"[" + starts + b"]") if patterns else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; give what may be shown."""
        if self._any is None:
            return data
        whole = self._held + data
        keep_from = self._doubtful_from(whole)
        shown: list[bytes] = []
        at = 0
        # Looking for each is many times faster than looking for any, and most output has none.
        has_some = any(one in whole for one in self._patterns)
        for found in self._any.finditer(whole) if has_some else ():
            if found.start() >= keep_from:
                break
            shown += [whole[at : found.start()], MASK]
            at = found.end()
        keep_from = max(keep_from, at)
        self._held = whole[keep_from:]
        return b"".join([*shown, whole[at:keep_from]])

    def finish(self) -> bytes:
        """Give what was held back: nothing more comes."""
        held, self._held = self._held, b""
        return held if self._any is None else self._any.sub(MASK, held)

    def hide(self, text: str) -> str:
        """Hide values in a whole text."""
        if self._any is None:
            return text
        return self._any.sub(MASK, text.encode(errors="surrogatepass")).decode(errors="replace")

    def _doubtful_from(self, whole: bytes) -> int:
        """Give where the first thing begins that more bytes may make a secret, or a longer one."""
        if self._start is None:
            return len(whole)
        for found in self._start.finditer(whole, max(0, len(whole) - self._longest + 1)):
            tail = whole[found.start() :]
            if any(len(one) > len(tail) and one.startswith(tail) for one in self._patterns):
                return found.start()
        return len(whole)


def _looks_of(value: str) -> Iterator[bytes]:
    for one in (value, *_long_lines(value)):
        data = one.encode(errors="surrogateescape")
        if len(data) < _SHORTEST:
            continue
        yield data
        yield quote(data, safe="").encode()
        yield quote(data).encode()
        yield quote_plus(data).encode()
        yield dumps(one)[1:-1].encode()
        yield repr(one)[1:-1].encode(errors="backslashreplace")
        yield data.hex().encode()
        yield from _in_base64(data)


def _long_lines(value: str) -> list[str]:
    lines = value.splitlines()
    return [line for line in lines if len(line) >= _LINE_LEAST] if len(lines) > 1 else []


def _in_base64(data: bytes) -> Iterator[bytes]:
    """Give what of a text's base64 does not depend on what stands around it, for each of its three alignments."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data)
        first = -(-shift * 8 // 6) if shift else 0
        last = (shift + len(data)) * 8 // 6
        core = encoded[first:last]
        if len(core) >= 2 * _SHORTEST:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
