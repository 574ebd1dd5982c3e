"""Which database is meant: what `--db` names, else this home's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Option

if TYPE_CHECKING:
    from stoker.coordinator.database.opening import Database

DB = Option("--db", value="URL", help="sqlite:///PATH or postgresql://…; unless told, the file below STOKER_HOME")


def address(call: Call, given: dict[str, Any]) -> str:
    """Give the address of the database that is meant."""
    return given["db"] or call.parts.settings.queue


@contextmanager
def beside(call: Call, given: dict[str, Any]) -> Iterator[Database]:
    """Open it only to read, beside whoever serves it."""
    from stoker.coordinator.database.opening import look_into

    database = look_into(address(call, given), clock=call.parts.clock)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def alone(call: Call, url: str) -> Iterator[Database]:
    """Open it for ourselves, made or migrated where needed; refused while a coordinator serves it."""
    from stoker.coordinator.database.opening import open_database

    database = open_database(url, clock=call.parts.clock)
    try:
        yield database
    finally:
        database.close()
