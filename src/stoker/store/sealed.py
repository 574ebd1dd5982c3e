"""Small files that vouch for themselves: one JSON object with a check of its own content.

    {"sealed":"ref/1", …the body…, "check":"<SHA-256>"}

`sealed` says what sort of file this is and in which format; the check covers it too, so that one sort is never taken
for another. A file that is torn, edited or of another format is refused with its reason. Only the content is checked:
whoever lays the text out anew changes nothing.
"""

from __future__ import annotations

from typing import Any

from stoker.model.digests import Digest, digest_value
from stoker.model.json_text import dumps, loads

_MARK = "sealed"
_CHECK = "check"


class BrokenSeal(ValueError):
    """These bytes are not what was sealed; the text says why, beginning with a verb: what `it` is or has."""


def seal(domain: str, body: dict[str, Any], *, indent: int | None = None) -> bytes:
    """Give the bytes of a file: a line of JSON, or several where people read it. `domain` is `SORT/FORMAT`."""
    content = {_MARK: domain, **body}
    return f"{dumps({**content, _CHECK: _check(content)}, indent=indent)}\n".encode()


def unseal(domain: str, data: bytes) -> dict[str, Any]:
    """Give the body that was sealed; `BrokenSeal` if these bytes are not that, or not all of it."""
    if not data.endswith(b"\n"):
        raise BrokenSeal("has no end")
    try:
        content = loads(data)
    except ValueError:
        raise BrokenSeal("is not JSON") from None
    if not isinstance(content, dict) or _MARK not in content or _CHECK not in content:
        raise BrokenSeal("has no seal")
    check = content.pop(_CHECK)
    if content[_MARK] != domain:
        raise BrokenSeal(f"is sealed as {content[_MARK]!r}, not as {domain!r}")
    if check != _check(content):
        raise BrokenSeal("does not match its check: it was edited, or is not whole")
    del content[_MARK]
    return content


def _check(content: dict[str, Any]) -> Digest:
    return digest_value("sealed", dumps(content, sort_keys=True).encode())
