"""How the body of an answer is framed: decided from its head alone, strictly. What contradicts itself is refused."""

from __future__ import annotations

import re

from stoker.host.http.exchange import Headers
from stoker.host.http.failures import Malformed
from stoker.model.frozen import frozen

_NUMBER = re.compile(r"[0-9]{1,18}")
_WITHOUT_BODY = frozenset({204, 304})


@frozen
class Framing:
    """Where a body ends: after so many bytes, with its last chunk, or (neither) where the connection does."""

    length_bytes: int | None = None
    is_chunked: bool = False


def framing(method: str, status: int, headers: Headers) -> Framing:
    """Decide how the body of an answer is framed. Raises `Malformed`."""
    length_bytes = announced_bytes(headers)
    codings = [coding for coding in _listed(headers, "transfer-encoding") if coding != "identity"]
    if method == "HEAD" or status in _WITHOUT_BODY:
        return Framing(length_bytes=0)
    if not codings:
        return Framing(length_bytes=length_bytes)
    if codings != ["chunked"]:
        raise Malformed("a transfer coding that nobody asked for")
    if length_bytes is not None:
        raise Malformed("a length and chunks at once")
    return Framing(is_chunked=True)


def announced_bytes(headers: Headers) -> int | None:
    """Give what `Content-Length` says, nothing where it is absent. Raises `Malformed` for nonsense or two opinions."""
    said = _listed(headers, "content-length")
    if not said:
        if headers.all("content-length"):
            raise Malformed("an empty Content-Length")
        return None
    if not all(_NUMBER.fullmatch(value) for value in said):
        raise Malformed("a Content-Length that is no number")
    lengths = {int(value) for value in said}
    if len(lengths) > 1:
        raise Malformed("two different Content-Lengths")
    return lengths.pop()


def _listed(headers: Headers, name: str) -> list[str]:
    values = (value.strip().lower() for field in headers.all(name) for value in field.split(","))
    return [value for value in values if value]
