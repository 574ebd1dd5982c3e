"""Where data may come from when a job is submitted, beside a path: what is handed in for it. Only nouns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.store.records import Record
from stoker.store.trees import Heed


@frozen
class FoundRepository:
    """A repository of the hub at the commit that a revision is now."""

    repo: str
    """`org/name`, or `datasets/org/name`."""
    commit: str
    files: int
    size_bytes: int


def _no_store(text: str) -> Record:
    raise BadInput(f"nothing goes by {text!r} here")


def _no_hub(text: str) -> FoundRepository:
    raise BadInput(f"there is no hub here to ask for {text}")


def _no_file(repo: str, name: str) -> str:
    raise BadInput(f"there is no hub here to ask for {name} of {repo}")


def _silently(_what: str, _size_bytes: int) -> AbstractContextManager[Heed]:
    return nullcontext(lambda _: None)


@frozen
class DataPlaces:
    """What submitting data needs of this machine."""

    host: str = ""
    """What this machine is called: workers of the same one read its files in place."""
    find_kept: Callable[[str], Record] = _no_store
    """Gives what a name or a digest stands for in this machine's store. Raises `StokerError`."""
    find_repository: Callable[[str], FoundRepository] = _no_hub
    """Asks the hub for `org/name[@revision]`. Raises `StokerError`."""
    find_file: Callable[[str, str], str] = _no_file
    """Has one small file of `org/name@commit` in this machine's cache; gives the folder that it is in. Raises
    `StokerError`."""
    reading: Callable[[str, int], AbstractContextManager[Heed]] = _silently
    """Opens a display for what is read: its name, and how many bytes."""
