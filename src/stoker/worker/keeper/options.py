"""What whoever starts a worker says of it, and how that is read."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.model.errors import Usage
from stoker.model.frozen import fresh, frozen
from stoker.model.units import parse_size

_HINT = "--declare cores=2,ram=4G,gpus=0"


@frozen
class WorkOptions:
    """One worker as it was asked for."""

    url: str
    token: str = ""
    """Shown to a coordinator that wants one."""
    name: str = ""
    """Empty: the machine's own."""
    slots: int | None = None
    declared: dict[str, int | list[str]] = fresh(factory=dict)
    is_once: bool = False
    until_idle: bool = False
    stop_grace_s: float | None = None
    """How long a job may take to save what it has when it is stopped; nothing: as usual."""


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


def _whole(name: str, value: str, *, least: int) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise Usage(f"--declare: {name}={value} is not a whole number of at least {least}", hint=_HINT)
    return int(value)


def _size(value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise Usage(f"--declare: ram={value}: {error}", hint=_HINT) from None
