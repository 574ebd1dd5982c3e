"""`state/joined/pending-ID.json`: the words of an attempt to join, kept until their answer is.

A code works once. Who was killed between the coordinator's answer and the last of its own files says the very same
words again and gets the very same answer. The file has the machine's new key, for its owner alone; it is there before
the words go out and gone once what they brought is kept.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.host.durable import read_regular, write_file
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.model.principals import Role
from stoker.wire.enrolling import JoinFinish
from stoker.wire.joined import FOLDER, make_folder

_PREFIX = "pending-"
_LARGEST_BYTES = 64 * 1024
_OLD_S = 86_400.0
"""No code lives so long: what is left of such an attempt is of no use."""


@frozen
class Pending:
    """An attempt to join whose answer is not kept yet."""

    url: str
    ca_pem: str
    """What the coordinator proved to be its own."""
    role: Role
    key_pem: str
    """A machine's; empty for a person."""
    said: JoinFinish


def write_pending(state: str, pending: Pending, *, now_s: float) -> None:
    """Keep an attempt before it is made. Those that nobody can go on with are removed."""
    folder = make_folder(state)
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(_PREFIX) and now_s - os.lstat(path).st_mtime > _OLD_S:
                os.unlink(path)
    told = {
        "v": 1,
        "url": pending.url,
        "ca_pem": pending.ca_pem,
        "role": pending.role.value,
        "key_pem": pending.key_pem,
        "said": pending.said.model_dump(mode="json"),
    }
    write_file(_path(state, pending.said.id), dumps(told).encode(), mode=0o600)


def read_pending(state: str, invite: str) -> Pending | None:
    """Give the attempt that was made with an invitation; nothing if there is none that can be read."""
    try:
        told = loads(read_regular(_path(state, invite), _LARGEST_BYTES))
        return Pending(
            url=str(told["url"]),
            ca_pem=str(told["ca_pem"]),
            role=Role(told["role"]),
            key_pem=str(told["key_pem"]),
            said=JoinFinish.model_validate(told["said"]),
        )
    except (OSError, ValueError, KeyError, TypeError, StokerError):
        return None


def drop_pending(state: str, invite: str) -> None:
    """Remove it, and the folder if nothing else was ever in it."""
    with suppress(OSError):
        os.unlink(_path(state, invite))
        os.rmdir(os.path.join(state, FOLDER))


def _path(state: str, invite: str) -> str:
    return os.path.join(state, FOLDER, f"{_PREFIX}{invite}.json")
