"""The token that says who we are at a hub: from the environment, else from the file that `hf auth login` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.model.errors import BadInput

_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def read_token(environment: Mapping[str, str], path: str, read_text: Callable[[str], str | None]) -> str:
    """Give the token, or an empty text when there is none.

    HF_HUB_DISABLE_IMPLICIT_TOKEN means none, wherever one may lie. Raises `BadInput`, without the token, if what is
    there can't stand in a header.
    """
    if is_true(environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return ""
    for name in _NAMES:
        if token := environment.get(name, "").strip():
            return _checked(token, name)
    return _checked((read_text(path) or "").strip(), path)


def is_true(value: str | None) -> bool:
    """Say whether a variable of the hub's client is switched on."""
    return (value or "").upper() in _TRUE


def _checked(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(f"not a token: what {source} holds", hint="a token is one word; hf auth login writes it anew")
    return token
