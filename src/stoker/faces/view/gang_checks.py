"""How a rehearsal of a gang went, as lines of a checkup: one for the whole, one for each phase with all times."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.gang.rehearsing import COLLECTIVE, Rehearsal, Rehearsed, last_phase
from stoker.gang.states import Phase
from stoker.hardware.checkup import Check, State
from stoker.model.frozen import frozen

_PHASES = (*(phase.name for phase in Phase if phase < Phase.READY), COLLECTIVE)
_TOGETHER = frozenset({"COMM", COLLECTIVE})
"""In these everybody waits for the last one, so that a long time is not one rank's own."""
_MOST_LISTED = 8
_SLOW_S = 0.1
_SLOW_FACTOR = 3


@frozen
class _Fault:
    """The rank with which it ended, where there is one."""

    rank: int = -1
    phase: str = ""
    how: str = ""


def check_gang(rehearsal: Rehearsal) -> tuple[Check, ...]:
    """Judge a rehearsal."""
    fault = _fault(rehearsal)
    return (_whole(rehearsal), *(check for name in _PHASES if (check := _phase(name, rehearsal, fault)) is not None))


def _whole(rehearsal: Rehearsal) -> Check:
    tried, error = str(rehearsal.trial), rehearsal.error
    if error is not None:
        return Check(name="gang", verdict=State.BAD, message=f"{tried}: {error.message}", hint=error.hint)
    warm = f", once torch was imported ({_time(rehearsal.import_s)})" if rehearsal.import_s else ""
    up = "" if rehearsal.up_s is None else f": up in {_time(rehearsal.up_s)}{warm}, and they add up right"
    return Check(name="gang", verdict=State.OK, message=tried + up)


def _phase(name: str, rehearsal: Rehearsal, fault: _Fault) -> Check | None:
    """Judge one phase; `None`: nobody got so far."""
    done = [one for one in rehearsal.ranks if name in one.phases_s]
    inside = [one for one in rehearsal.ranks if name not in one.phases_s and last_phase(one.phases_s) == name]
    is_here = fault.phase == name
    if not done and not is_here:
        return None
    told = [_times(done, name)] if done else []
    if is_here:
        told += [f"{_who(one)} {fault.how}" for one in inside if one.rank == fault.rank]
        waiting = [str(one.rank) for one in inside if one.rank != fault.rank]
        told += [f"rank {', '.join(waiting)} waiting"] if waiting else []
        return Check(name=f"gang {name}", verdict=State.BAD, message="; ".join(told))
    slowest = max(done, key=lambda one: one.phases_s[name])
    is_slow = name not in _TOGETHER and _is_slow(slowest, done, name)
    hint = f"{_who(slowest)} is slow: compare it with the others" if is_slow else ""
    return Check(name=f"gang {name}", verdict=State.WARN if is_slow else State.OK, message="; ".join(told), hint=hint)


def _times(done: Sequence[Rehearsed], name: str) -> str:
    slowest = max(done, key=lambda one: one.phases_s[name])
    if len(done) > _MOST_LISTED:
        median_s = sorted(one.phases_s[name] for one in done)[len(done) // 2]
        return f"{len(done)} ranks, median {_time(median_s)}, slowest {_who(slowest)} {_time(slowest.phases_s[name])}"
    listed = ", ".join(f"rank {one.rank} {_time(one.phases_s[name])}" for one in done)
    return listed if len(done) == 1 else f"{listed}; slowest {_who(slowest)}"


def _is_slow(slowest: Rehearsed, done: Sequence[Rehearsed], name: str) -> bool:
    others = sorted(one.phases_s[name] for one in done if one is not slowest)
    if not others:
        return False
    return slowest.phases_s[name] > max(_SLOW_S, _SLOW_FACTOR * others[len(others) // 2])


def _fault(rehearsal: Rehearsal) -> _Fault:
    data = {} if rehearsal.error is None else rehearsal.error.data
    rank, phase = data.get("rank"), data.get("phase")
    if not isinstance(rank, int) or not isinstance(phase, str):
        return _Fault()
    said = {"silent": "is silent", "ended": "ended"}.get(str(data.get("how", "")), "failed")
    # What runs once all are ready is the collective.
    return _Fault(rank=rank, phase=COLLECTIVE if phase == Phase.RUN.name else phase, how=said)


def _who(one: Rehearsed) -> str:
    return f"rank {one.rank} ({one.device})"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
