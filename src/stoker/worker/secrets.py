"""Secrets of jobs on this machine: names come with a job, values never leave here.

    state/secrets.env       NAME=value, one a line; for its owner alone (0600)

A value comes from the worker's own environment, else from that file. It is read when a job needs it, so that a file
that was put right helps at once.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen
from stoker.host.durable import open_regular

FILE = "secrets.env"
SHORTEST = 4
"""A shorter value stands in every other word: it could not be kept out of what a job prints."""
_LARGEST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES = ("'", '"')


@frozen
class FoundSecrets:
    """What a job's secrets are here."""

    values: Mapping[str, str] = fresh(factory=dict)
    trouble: str = ""
    """Why not all of them are; never with a value in it."""

    def __repr__(self) -> str:
        return f"FoundSecrets({', '.join(self.values)}; {self.trouble})"


def find_secrets(names: Iterable[str], *, environment: Mapping[str, str], path: str) -> FoundSecrets:
    """Look for the values of secrets."""
    names = tuple(names)
    found = {name: environment[name] for name in names if environment.get(name)}
    lacking = [name for name in names if name not in found]
    if lacking:
        try:
            written = read_secrets(path)
        except BadInput as error:
            return FoundSecrets(trouble=error.message)
        found |= {name: written[name] for name in lacking if written.get(name)}
        lacking = [name for name in lacking if name not in found]
    if lacking:
        listed = ", ".join(lacking)
        return FoundSecrets(trouble=f"not set in this worker's environment: {listed} (nor in {path})")
    short = [name for name, value in found.items() if len(value) < SHORTEST]
    if short:
        return FoundSecrets(trouble=f"too short to be kept out of logs: {', '.join(short)}")
    return FoundSecrets(values=found)


def read_secrets(path: str) -> dict[str, str]:
    """Read the file; nothing if there is none. Raises `BadInput` that names the line and no value."""
    try:
        with open_regular(path) as file:
            info = os.fstat(file.fileno())
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror or error}") from None
    if info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(f"{path} is open to others; secrets are for their owner alone: chmod 600 {path}")
    if len(data) > _LARGEST_BYTES:
        raise BadInput(f"{path} is larger than {_LARGEST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text in UTF-8") from None
    return dict(_entries(text, path))


def _entries(text: str, path: str) -> Iterable[tuple[str, str]]:
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if not plain or plain.startswith("#"):
            continue
        name, equals, value = plain.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name):
            raise BadInput(f"{path}, line {number}: not NAME=value")
        if name in seen:
            raise BadInput(f"{path}, line {number}: {name} stands in line {seen[name]} already")
        seen[name] = number
        if value[:1] in _QUOTES:
            if len(value) < 2 or value[-1] != value[0]:
                raise BadInput(f"{path}, line {number}: the quote of {name} does not end")
            value = value[1:-1]
        if "\0" in value:
            raise BadInput(f"{path}, line {number}: {name} holds a zero byte")
        yield name, value
