"""What a hub means when it says no: the plain error of the status, with what only a hub tells and only a hub needs."""

from __future__ import annotations

from stoker.host.http.addresses import origin, shown
from stoker.model.errors import AuthRefused, NotOnServer, RateLimited, StokerError
from stoker.store.download.refusing import is_busy

_ABSENT = {
    "RepoNotFound": ("no such repository", "check the spelling"),
    "RevisionNotFound": ("no such revision", "check the branch, tag or commit"),
    "EntryNotFound": ("no such file in that revision", "check the name"),
}


def is_passing(status: int) -> bool:
    """Whether asking a hub again later may help. What it has not implemented (501), it won't have then either."""
    return is_busy(status) and status != 501


def explained(error: StokerError, url: str, what: str, *, has_token: bool) -> StokerError:
    """Give an error of `download.refusing` in a hub's words; any other is given back as it is.

    `url` is what was asked for, `what` the same in a person's words.
    """
    status, code = error.data.get("status"), error.data.get("error_code")
    data = {**error.data, "url": shown(url)}
    if code == "GatedRepo":
        hint = f"accept its terms at {_page(url)}, then {_token_hint(has_token=has_token)}"
        return AuthRefused(f"{what}: this repository is gated", hint=hint, **data)
    if isinstance(error, AuthRefused):
        unknown = f"{what}: no such repository, or it is private ({status})"
        hint = f"check the spelling; if it is private, {_token_hint(has_token=has_token)}"
        return AuthRefused(unknown if code == "RepoNotFound" else error.message, hint=hint, **data)
    if isinstance(error, NotOnServer) and code in _ABSENT:
        message, hint = _ABSENT[code]
        return NotOnServer(f"{what}: {message} ({status})", hint=hint, reason=code, **data)
    if isinstance(error, NotOnServer) and status != 451:
        return NotOnServer(error.message, hint="check the name and the revision", **data)
    if isinstance(error, RateLimited) and not has_token:
        return RateLimited(error.message, hint=f"{error.hint}; with a token a hub allows more", **data)
    return error


def _token_hint(*, has_token: bool) -> str:
    return "use a token whose owner may read it (HF_TOKEN)" if has_token else "set HF_TOKEN to a token that may read it"


def _page(url: str) -> str:
    """Give the page of the repository that an address of the hub belongs to."""
    path = shown(url).removeprefix(str(origin(url)))
    return f"{origin(url)}{path.partition('/resolve/')[0]}"
