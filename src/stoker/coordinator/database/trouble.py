"""What databases' own exceptions become, once and here: `DatabaseTrouble`, with what to do about it.

A value that no column can hold is no trouble of the database: whoever asked for it has to change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from stoker.model.errors import BadInput
from stoker.model.fleet_errors import DatabaseTrouble
from stoker.model.printable import one_line

_LONGEST_CHARS = 300
_HINTS = (
    ("locked", "another program writes to it; try again"),
    ("busy", "another program writes to it; try again"),
    ("full", "make room on its disk"),
    ("no space", "make room on its disk"),
    ("readonly", "the coordinator must be allowed to write it"),
    ("not a database", "this file is something else; name another one"),
    ("malformed", "restore a backup: `stoker admin db restore`"),
    ("password", "look at the user and password in its address"),
    ("does not exist", "make the database first: `createdb`"),
    ("refused", "start the database, or look at its address"),
    ("unable to open", "look at its folder: it must exist and be writable"),
)


def trouble(shown: str, error: BaseException) -> DatabaseTrouble:
    """Say what a database's exception means; `shown` names the database, without secrets."""
    cause = getattr(error, "orig", None) or error
    text = one_line(str(cause) or type(cause).__name__, _LONGEST_CHARS)
    lowered = text.lower()
    hint = next((hint for word, hint in _HINTS if word in lowered), "look at the database; this is tried again")
    return DatabaseTrouble(f"{shown}: {text}", hint=hint, database=shown)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Let what SQLAlchemy raises in the block come out as `DatabaseTrouble`, or `BadInput` for an impossible value."""
    try:
        yield
    except (exc.DataError, OverflowError, UnicodeEncodeError) as error:
        cause = getattr(error, "orig", None) or error
        raise BadInput(f"the database does not take this: {one_line(str(cause), _LONGEST_CHARS)}") from error
    except (exc.DBAPIError, exc.TimeoutError, UnicodeDecodeError) as error:
        raise trouble(shown, error) from error
