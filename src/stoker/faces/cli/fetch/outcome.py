"""How fetching ended: where the files are, what is missing and why, and the code that says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.failing import report
from stoker.faces.cli.fetch.session import Session, session
from stoker.faces.cli.hinting import hinted
from stoker.model.errors import Cancelled, StokerError, Terminated
from stoker.model.frozen import frozen
from stoker.model.units import format_size
from stoker.store.download.outcome import Outcome

_KEPT = "what came is kept"
_SAME = "the same command"


@frozen
class Haul:
    """Everything that was wanted, and the folder that a person looks into."""

    files: Sequence[Outcome]
    folder: str = ""
    told: str = ""
    """The last line, where it is not simply where the files are."""


def fetch_with(call: Call, given: dict[str, Any], about: str, work: Callable[[Session], Haul]) -> int:
    """Let `work` fetch within a session; tell how it ended and give the exit code."""
    haul, error = try_fetching(call, given, about, work)
    if error is not None:
        return report(error, call.out, debug=call.flags.debug, is_in_stream=True)
    call.out.line(haul.told or _where(haul, is_short=call.out.is_quiet))
    return 0


def try_fetching(
    call: Call, given: dict[str, Any], about: str, work: Callable[[Session], Haul], *, tells_there: bool = True
) -> tuple[Haul, StokerError | None]:
    """Let `work` fetch within a session and tell of each file; give what came, and what failed as one error.

    Unless it `tells_there`, nothing is said of files that were there already.
    """
    call.parts.receipts.make()
    haul = Haul(files=())
    error: StokerError | None = None
    with session(call, given, memo=call.parts.store.memo, tells_there=tells_there) as one:
        try:
            haul = one.run(work)
        except StokerError as failure:
            error = failure
            haul = Haul(files=(Outcome(label=about, error=failure),))
        failed = [(got.label, hinted(got.error)) for got in haul.files if got.error is not None]
        if not call.out.is_json:
            # Of one file, and of an interruption, the last line tells; a stream of JSON has no other.
            failed = [
                told for told in failed if len(haul.files) > 1 and not isinstance(told[1], Cancelled | Terminated)
            ]
        one.tell_failures(failed)
    return haul, error or first_failure(haul.files)


def first_failure(files: Sequence[Outcome]) -> StokerError | None:
    """Give what failed as one error: an interruption before everything else, then the first in the order of files."""
    failed = [got.error for got in files if got.error is not None]
    if not failed:
        return None
    first = next((one for one in failed if isinstance(one, Cancelled | Terminated)), failed[0])
    if len(files) == 1 or isinstance(first, Cancelled | Terminated):
        return first
    told = type(first)(f"{len(failed)} of {len(files)} files did not come: {first}", hint=first.hint, **first.data)
    has_come = any(got.fetched is not None for got in files) or any(one.data.get("kept_bytes") for one in failed)
    if has_come and not first.data.get("kept_bytes"):
        told.add_hint(_KEPT if _SAME in told.hint else f"{_KEPT}: {_SAME} resumes")
    return told


def _where(haul: Haul, *, is_short: bool) -> str:
    there = [got.fetched for got in haul.files if got.fetched is not None]
    if len(there) == 1:
        return there[0].path
    folder = haul.folder or os.path.commonpath([os.path.dirname(one.path) for one in there])
    if is_short:
        return folder
    return f"{len(there):,} files, {format_size(sum(one.size_bytes for one in there))} in {folder}"
