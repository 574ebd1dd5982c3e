"""Which files of an attempt's folder may be mirrored, and under which names: decided without touching a file.

A name comes from a worker, so it is judged as a stranger's: relative, short, of letters that no system gives a meaning
to, and never hidden (names that begin with a dot are the coordinator's own).
"""

from __future__ import annotations

from stoker.host.names import name_fault, shown_name
from stoker.model.digests import is_digest
from stoker.model.errors import BadInput

LONGEST_PATH = 400
MOST_LEVELS = 6
END = "end.json"
"""How an attempt ended: the last of its files to come, and durable with all the others when it is there."""
_ALLOWED = frozenset("-_.[]=,+")


def check_path(path: str) -> str:
    """Give the path of a mirrored file back if it may be one. Raises `BadInput`, which says why not."""
    fault = path_fault(path)
    if fault:
        shown = shown_name(path)
        raise BadInput(f"no name for a mirrored file: {shown}: {fault}", hint="nothing was written", name=shown)
    return path


def path_fault(path: str) -> str:
    """Say what keeps a path from being a mirrored file's; nothing if it may be one."""
    if len(path) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} characters"
    fault = name_fault(path)
    if fault:
        return fault
    parts = path.split("/")
    if len(parts) > MOST_LEVELS:
        return f"it is more than {MOST_LEVELS} levels deep"
    if any(part.startswith(".") for part in parts):
        return "a part begins with a dot"
    odd = next((char for char in path if not (char.isalnum() or char in _ALLOWED or char == "/")), "")
    return f"it has a character {odd!a}" if odd else ""


def attempt_place(job: str, attempt: int) -> str:
    """Name an attempt's folder below that of all attempts. Raises `BadInput` for what is no job or attempt."""
    if not is_digest(job):
        raise BadInput(f"not the id of a job: {job[:80]!r}", hint="it is written as 64 lower-case hex digits")
    if attempt < 1:
        raise BadInput(f"there is no attempt {attempt}", hint="they are counted from 1")
    return f"{job[:2]}/{job}/{attempt}"
