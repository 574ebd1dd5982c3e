"""A status that says no, as one of our errors: one table, pure, whoever asked and whatever for."""

from __future__ import annotations

from typing import Any

from stoker.host.http.exchange import Headers
from stoker.model.errors import AuthRefused, BadAnswer, NetworkFailed, NotOnServer, RateLimited, StokerError
from stoker.model.printable import one_line

GONE = frozenset({404, 410, 451})
_BUSY = frozenset({408, 425, 429})
_LONGEST_SAYING = 200


def is_busy(status: int) -> bool:
    """Whether the server has trouble, or too much to do: asking again later may help."""
    return status in _BUSY or status >= 500


def refusal(where: str, status: int, headers: Headers) -> StokerError:
    """Give the error for a status from 400 on; `where` is what was asked for, in a person's words.

    Its data has the status, and as `error_code` what the server itself calls the matter, if it does.
    """
    code = headers.get("X-Error-Code")
    data: dict[str, Any] = {"status": status}
    if code:
        data["error_code"] = one_line(code, _LONGEST_SAYING)
    if status in {401, 403}:
        hint = "check the address, and whether the server wants credentials"
        return AuthRefused(f"the server does not let us ({status}): {where}{_said(headers)}", hint=hint, **data)
    if status in GONE:
        hint = "check the address" if status != 451 else "it is withheld for legal reasons"
        return NotOnServer(f"not on the server ({status}): {where}", hint=hint, **data)
    if status == 407:
        hint = "check the user and password in HTTPS_PROXY"
        return NetworkFailed(f"the proxy refuses us (407): {where}", hint=hint, **data)
    if status == 429:
        hint = "wait a while, then start again"
        return RateLimited(f"the server asks for fewer requests (429): {where}", hint=hint, **data)
    if is_busy(status):
        hint = "the server has trouble: try again later"
        return NetworkFailed(f"the server answers {status}: {where}", hint=hint, **data)
    return BadAnswer(f"the server answers {status}: {where}{_said(headers)}", **data)


def _said(headers: Headers) -> str:
    said = headers.get("X-Error-Message") or ""
    return f": {one_line(said, _LONGEST_SAYING)}" if said else ""
