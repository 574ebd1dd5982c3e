"""Names of boxes: whose work is inside, and who opened it.

`stoker-JOB-STAGE.MARK.PID-TICKS-SPACE-COUNT`: the last part is the process that opened the box, so that the next one
can tell which boxes nobody closes any more.
"""

from __future__ import annotations

import itertools
import re

from stoker.host import identity
from stoker.host.identity import Liveness, ProcessIdentity

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"stoker-[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.(\d+)-(\d+)-(\d*)-\d+")
_SPACE = re.compile(r"\d+")
# Names of folders and units end at 255 bytes.
_LONGEST_NAME = 120
_LONGEST_MARK = 60

_counter = itertools.count(1)


def box_name(name: str, mark: str) -> str:
    """Give a name that no other box has, on this machine, while either is open."""
    me = identity.mine()
    owner = f"{me.pid}-{me.start_ticks}-{_space_number(me)}-{next(_counter)}"
    return f"stoker-{_clean(name)[:_LONGEST_NAME]}.{_clean(mark)[:_LONGEST_MARK]}.{owner}"


def is_abandoned(name: str) -> bool:
    """Say whether this is the name of a box whose opener is certainly gone."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return False
    me = identity.mine()
    if parsed[3] != _space_number(me):
        # The number means nothing here: it was opened from within another container, or from outside of ours.
        return False
    owner = identity.identity_from(int(parsed[1]), int(parsed[2]))
    return identity.is_alive(owner) is Liveness.GONE


def _space_number(one: ProcessIdentity) -> str:
    found = _SPACE.search(one.pid_space)
    return found[0] if found else ""


def _clean(text: str) -> str:
    return _OTHER.sub("_", text)
