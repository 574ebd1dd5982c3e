"""`state/serve.json`: where the coordinator of this home listens, so that every command here finds it with no set-up.

Written by the coordinator once it listens; it counts only as long as that very process lives. Commands of its user
reach it over its Unix socket, without a token. The operator's token is in a file of its own beside it, mode 600, for
requests over TCP.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from stoker.host.durable import read_regular, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads

NAME = "serve.json"
LAST_NAME = "served.json"
"""The same of the coordinator that ended last."""
TOKEN_NAME = "operator.token"  # noqa: S105 - the file's name
_LARGEST_BYTES = 64 * 1024


@frozen
class ServeFile:
    """What a coordinator tells the commands beside it."""

    url: str
    owner: ProcessIdentity
    token_file: str = ""
    """Where the operator's token is; empty: only the environment has it."""
    socket: str = ""
    """The Unix socket by which its own user reaches it."""
    version: str = ""
    ca_file: str = ""
    """The fleet's CA, where it speaks TLS: whoever asks it trusts that one and no other."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "v": 1,
            "url": self.url,
            "owner": self.owner.to_dict(),
            "token_file": self.token_file,
            "socket": self.socket,
            "version": self.version,
            "ca_file": self.ca_file,
        }

    def write(self, state: str) -> None:
        """Write it into the state folder."""
        write_file(os.path.join(state, NAME), dumps(self.to_dict(), indent=1).encode())


def withdraw(state: str) -> None:
    """Take our own word back when we end; that there was a coordinator, and where, stays known."""
    found = read_serve_file(state)
    if found is not None and found.owner == mine():
        with suppress(OSError):
            os.replace(os.path.join(state, NAME), os.path.join(state, LAST_NAME))


def read_serve_file(state: str, name: str = NAME) -> ServeFile | None:
    """Give what the coordinator of this home says, whether or not it still lives; nothing if there is no such word."""
    try:
        raw = loads(read_regular(os.path.join(state, name), _LARGEST_BYTES))
        return ServeFile(
            url=str(raw["url"]),
            owner=ProcessIdentity.from_dict(raw["owner"]),
            token_file=str(raw.get("token_file", "")),
            socket=str(raw.get("socket", "")),
            version=str(raw.get("version", "")),
            ca_file=str(raw.get("ca_file", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def living_coordinator(state: str) -> ServeFile | None:
    """Give the coordinator of this home if it runs on this machine now."""
    found = read_serve_file(state)
    return found if found is not None and is_alive(found.owner) is Liveness.ALIVE else None
