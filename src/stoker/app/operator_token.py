"""The operator's token: a secret in a file of its own that nobody else may read, made at the first start."""

from __future__ import annotations

import os
import secrets
import stat

from stoker.core.errors import BadInput, LocalFile
from stoker.host.durable import create_file, read_regular, translated

_SHORTEST = 16
_MOST_BYTES = 4096


def make_token(path: str) -> str:
    """Return the token of a file; the file is made, for us alone, if it is missing."""
    folder = os.path.dirname(path)
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
    create_file(path, f"{secrets.token_urlsafe(32)}\n".encode(), 0o600)
    return read_token(path)


def read_token(path: str) -> str:
    """Return the token of a file that is there, and that only its owner may read."""
    try:
        mode = os.stat(path).st_mode
        text = read_regular(path, _MOST_BYTES).decode().strip()
    except FileNotFoundError:
        raise LocalFile(f"there is no token file {path}", hint="a long random word in a file of mode 600") from None
    except (OSError, ValueError) as error:
        raise LocalFile(f"the token file {path} can't be read: {error}", path=path) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LocalFile(f"others may read the token in {path}", hint=f"chmod 600 {path}", path=path)
    return long_enough(text, path)


def long_enough(token: str, where: str) -> str:
    """Refuse a token that can be guessed, or can't be sent."""
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(
            f"the operator's token ({where}) is no word of at least {_SHORTEST} letters",
            hint="such as: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token
