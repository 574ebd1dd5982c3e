"""The folders that members' users asked for: each is one training's alone while it goes on, whichever run it is of.

Two that share one would each replace, and remove, what the other is just writing; so would one whose folder is a
checkpoint of the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.cookbooks.language.company.checkpoint_folders import is_checkpoint_name, refuse_strangers
from stoker.host.durable import translated
from stoker.host.lockfile import DEFAULT_WAIT_S, Lock, is_locked, read_owner
from stoker.model.clock import Clock
from stoker.model.errors import LocalFile, LockHeld

LOOK_S = 0.1
"""From one look at a folder that somebody has to the next."""
_NAME = ".lock"
_NO_LOCKS = frozenset({"ENOLCK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP"})
"""What a file system says that has no locks: nobody can hold one there."""


class OwnFolders:
    """Who has which folder, by slot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[int, Lock] = {}
        self._asked_s: dict[int, float] = {}

    def take(self, slot: int, folder: str | None, who: str) -> bool:
        """Make a member's folder, if it wants one, and take it; `False`: somebody has it, so ask again.

        Whoever had it may be just leaving. Raises `LockHeld` with who has it when that takes too long, and what is
        wrong with a folder that can't be made: found out now, not after the first epoch.
        """
        if folder is None or slot in self._locks:
            return True
        root = Path(folder).expanduser()
        with translated(root):
            root.mkdir(parents=True, exist_ok=True)
        lock = Lock(root / _NAME, f"trains {who}", wait_s=0.0, clock=self._clock, removes_file=True)
        try:
            _refuse_nested(root)
            lock.acquire()
        except LockHeld as held:
            asked_s = self._asked_s.setdefault(slot, self._clock.monotonic_s())
            if self._clock.monotonic_s() - asked_s < DEFAULT_WAIT_S:
                return False
            raise _taken(root, held) from None
        except LocalFile as error:
            if error.data.get("errno") not in _NO_LOCKS:
                raise
        self._locks[slot] = lock
        refuse_strangers(root)
        return True

    def give_back(self, slot: int) -> None:
        """Let others have a member's folder."""
        self._asked_s.pop(slot, None)
        lock = self._locks.pop(slot, None)
        if lock is not None:
            lock.release()

    def close(self) -> None:
        """Let others have all of them."""
        for slot in list(self._locks):
            self.give_back(slot)


@contextmanager
def own_folder(folder: str | None, who: str, clock: Clock) -> Iterator[None]:
    """Have a folder for as long as the block takes. Raises as `OwnFolders.take` does."""
    folders = OwnFolders(clock)
    try:
        while not folders.take(0, folder, who):
            clock.sleep(LOOK_S)
        yield
    finally:
        folders.close()


def _refuse_nested(root: Path) -> None:
    """Raise `LockHeld` if a checkpoint around the folder, or one in it, is of a training that goes on."""
    whole = root.resolve()
    around = [place.parent for place in (whole, *whole.parents) if is_checkpoint_name(place.name)]
    within = [place for place in whole.iterdir() if is_checkpoint_name(place.name)]
    for other in (*around, *within):
        if is_locked(other / _NAME):
            owner = read_owner(other / _NAME)
            known: dict[str, Any] = (
                {} if owner is None else {"owner": {"pid": owner.identity.pid}, "purpose": owner.purpose}
            )
            raise LockHeld(f"{other} is another training's", path=str(other), **known)


def _taken(root: Path, held: LockHeld) -> LockHeld:
    owner, purpose = held.data.get("owner"), held.data.get("purpose")
    who = f"process {owner['pid']}, which {purpose}" if isinstance(owner, dict) else "a process that did not sign it"
    message = f"the folder for checkpoints is another training's: {root} (of {who})"
    hint = "name another folder (checkpoints=FOLDER, `checkpoint` in a file of adapters), or wait for that training"
    return LockHeld(message, hint=hint, **held.data)
