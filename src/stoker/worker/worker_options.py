"""What whoever starts a worker says of it, and how that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.core.errors import Usage
from stoker.core.frozen import fresh, frozen
from stoker.core.text import parse_size
from stoker.host.http.http_settings import FleetIdentity
from stoker.protocol.code_messages import is_tree

_MOST_ACCEPTED = 1000
_HINT = "--declare cores=2,ram=4G,gpus=0"


@frozen
class WorkOptions:
    """One worker as it was asked for."""

    url: str
    identity: FleetIdentity | None = None
    """The coordinator's socket on this machine; or, if the machine has joined, the fleet's CA and its certificate."""
    name: str = ""
    """Empty: the machine's own."""
    slots: int | None = None
    declared: dict[str, int | list[str]] = fresh(factory=dict)
    is_once: bool = False
    until_idle: bool = False
    for_s: float | None = None
    """How long it works; None: until it is told to end."""
    stop_grace_s: float | None = None
    """How long a job may take to save what it has when it is stopped; nothing: as usual."""
    accepts: tuple[str, ...] = ()
    """Trees whose code alone it runs; none: any."""
    keeps_workspaces: bool = False
    """Leave where programs ran for their owner to look at."""
    run_as: str = ""
    """The users that programs of jobs run as: `USER[,USER…]` or `UID-UID`; empty: the worker's own."""


def read_declared(words: Iterable[str]) -> dict[str, int | list[str]]:
    """Read `cores=2,ram=4G,gpus=0`; `gpus` may also name devices, with + between. Raises `Usage`."""
    found: dict[str, int | list[str]] = {}
    for word in (part.strip() for text in words for part in text.split(",") if part.strip()):
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise Usage(f"--declare: {word!r} says nothing", hint=_HINT)
        if name in ("cores", "slots"):
            found[name] = _whole(name, value, least=1)
        elif name == "ram":
            found["ram_bytes"] = _size(value)
        elif name == "gpus":
            found[name] = _whole(name, value, least=0) if value.isdigit() else value.split("+")
        else:
            raise Usage(f"--declare: nobody knows {name!r}", hint=_HINT)
    return found


def read_accepted(words: Iterable[str], read_lines: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Read `TREE,…` and `@FILE` with one on each line; `#` begins a comment. Raises `Usage`."""
    found: dict[str, None] = {}
    for part in (part.strip() for text in words for part in text.split(",") if part.strip()):
        lines = [line.partition("#")[0].strip() for line in read_lines(part[1:])] if part.startswith("@") else [part]
        for word in filter(None, lines):
            if not is_tree(word):
                raise Usage(
                    f"--accept-code: {word[:80]!r} is not the digest of a tree",
                    hint="all 64 digits of `code` of stoker submit --json; a commit is what the submitter says it is",
                )
            found[word] = None
    if len(found) > _MOST_ACCEPTED:
        raise Usage(f"--accept-code names {len(found):,}; {_MOST_ACCEPTED:,} are the most", hint="name those in use")
    if words and not found:
        raise Usage("--accept-code names no code at all", hint="leave it out to accept any")
    return tuple(found)


def _whole(name: str, value: str, *, least: int) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise Usage(f"--declare: {name}={value} is not a whole number of at least {least}", hint=_HINT)
    return int(value)


def _size(value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise Usage(f"--declare: ram={value}: {error}", hint=_HINT) from None
