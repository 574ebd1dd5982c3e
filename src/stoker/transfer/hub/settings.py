"""Where the hub is, where its cache lies and who we are there, by the variables that its own client reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.transfer.hub.listing import check_endpoint

# The token that says who we are at a hub: from the environment, else from the file that `hf auth login` writes.

_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def read_token(environment: Mapping[str, str], path: str, read_text: Callable[[str], str | None]) -> str:
    """Return the token, or an empty text when there is none.

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
    """Return whether a variable of the hub's client is switched on."""
    return (value or "").upper() in _TRUE


def _checked(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(f"not a token: what {source} holds", hint="a token is one word; hf auth login writes it anew")
    return token


HUB = "https://huggingface.co"


@frozen
class HubSettings:
    """Everything about a hub that a user can set."""

    endpoint: str = HUB
    cache: str
    token: str = ""
    """A secret: sent to the endpoint's own origin, never shown."""
    offline: bool = False
    symlinks: bool = True
    """Whether a snapshot may hold symbolic links; where the file system can't, copies are made anyway."""

    def __repr__(self) -> str:
        token = "set" if self.token else "none"
        return f"HubSettings(endpoint={self.endpoint!r}, cache={self.cache!r}, token={token}, offline={self.offline})"


def read_hub_settings(
    environment: Mapping[str, str], *, home: str, read_text: Callable[[str], str | None], endpoint: str = ""
) -> HubSettings:
    """Read the settings from environment variables.

    `home` is the user's folder, `read_text` gives a small file's content or nothing, `endpoint` is what a command line
    says (it wins). Raises `BadInput` for an address that is none.
    """

    def path(name: str, otherwise: str) -> str:
        return _expanded(environment.get(name) or otherwise, environment, home)

    caches = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    hub_home = path("HF_HOME", os.path.join(caches, "huggingface"))
    older = environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(hub_home, "hub")
    return HubSettings(
        endpoint=check_endpoint(endpoint or environment.get("HF_ENDPOINT") or HUB),
        cache=path("HF_HUB_CACHE", older),
        token=read_token(environment, path("HF_TOKEN_PATH", os.path.join(hub_home, "token")), read_text),
        offline=is_true(environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE")),
        symlinks=not is_true(environment.get("HF_HUB_DISABLE_SYMLINKS")),
    )


def _expanded(text: str, environment: Mapping[str, str], home: str) -> str:
    """Expand `~` and `$NAME` from what was handed in, as the hub's client does from its own surroundings."""
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2], found[0])

    return os.path.abspath(re.sub(r"\$(?:(\w+)|\{([^}]*)\})", value, text))
