"""What a keeper does next: from what it knows and what happened to what it knows then and what is to be done. Pure.

Rules, in order of precedence:

- A lease that is over by our own clock, counted from before the request that renewed it, is not spoken under: its job
  is stopped and its result dropped. A job that keeps on goes on; its result is offered if somebody renews it again.
- What the coordinator drops is stopped and forgotten; what it cancels is stopped, confirmed gone, then confirmed.
- Nothing is said of an attempt that is being stopped until nothing of it runs.
- Who leaves gives everything back first, and takes nothing new; told a second time, it ends everything now, and waits
  only a moment for the coordinator to hear it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.model.errors import NotFound, RateLimited
from stoker.model.frozen import changed, frozen
from stoker.model.lifecycle import JobState
from stoker.model.retry import pause_s
from stoker.wire.leasing import Do, ExecCall, Grant, LeaseOrder
from stoker.worker.keeper.happenings import (
    Answered,
    AskedToEnd,
    Began,
    Closed,
    DevicesChanged,
    Ended,
    Fatal,
    Given,
    Greeted,
    Happening,
    NotBegun,
    Settled,
    Stopped,
    Ticked,
    Unanswered,
    WentStale,
)
from stoker.worker.keeper.instructions import Begin, Greet, Instruction, OpenExec, TellStart
from stoker.worker.keeper.owner_pause import PAUSED
from stoker.worker.keeper.state import COORDINATOR, Keeping, LastWord, Lease, Leaving, Phase, Word
from stoker.worker.keeper.turning import Turn

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_BY_ORDER = {Do.CANCEL: Word.CANCELLED, Do.DROP: Word.NOTHING, Do.RELEASE: Word.RELEASE}


@frozen
class Decision:
    """What is known from now on, and what is to be done, in this order."""

    keeping: Keeping
    instructions: tuple[Instruction, ...]


def decide(keeping: Keeping, happening: Happening) -> Decision:
    """Take in what happened."""
    turn = Turn(keeping, happening.now_s)
    if not isinstance(happening, Answered):
        # First of all: who was suspended past its lease must notice before it does anything else. Only an answer may
        # come late and still renew, if it was asked for in time.
        turn.end_leases()
    _TAKERS[type(happening)](turn, happening)
    ends_s = turn.keeping.wishes.ends_s
    if ends_s is not None and turn.now_s >= ends_s and turn.keeping.leaving is Leaving.NO:
        _leave_softly(turn, 0, "its time is over")
    turn.look_around()
    return Decision(keeping=turn.keeping, instructions=tuple(turn.instructions))


def _take_tick(_turn: Turn, _ticked: Ticked) -> None:
    """Whatever is due is done for every happening."""


def _take_greeting(turn: Turn, greeted: Greeted) -> None:
    welcome = greeted.welcome
    _hear_closed(turn, welcome.closed)
    wishes = turn.keeping.wishes
    if welcome.slots:
        wishes = changed(wishes, slots=welcome.slots, beside=0)
    _hear_voice(turn)
    turn.now_knows(
        wishes=wishes,
        is_known=True,
        heartbeat_s=welcome.heartbeat_s,
        lease_s=welcome.lease_s,
        renew_at_s=turn.now_s,
        ask_at_s=turn.now_s,
    )
    turn.tell("joined", worker=welcome.worker, slots=wishes.slots, lease_s=welcome.lease_s, drift=list(welcome.drift))


def _take_grants(turn: Turn, given: Given) -> None:
    _hear_voice(turn)
    had_asked, was_called_back = bool(turn.keeping.asking), turn.keeping.is_called_back
    turn.now_knows(asking=None, is_called_back=False)
    _hear_closed(turn, given.answer.closed)
    for grant in given.answer.grants:
        _take_grant(turn, given, grant)
    for order in given.answer.orders:
        _hear_order(turn, order)
    _hear_calls(turn, given.answer.execs)
    keeping = turn.keeping
    if given.answer.grants:
        # The question may have been open for long, and its times count from its beginning.
        if turn.now_s - given.asked_s > keeping.heartbeat_s / 4:
            turn.now_knows(renew_at_s=min(keeping.renew_at_s, turn.now_s))
    elif had_asked and keeping.wishes.until_idle and _is_nothing_left(keeping, given):
        turn.tell("idle", waiting=dict(given.answer.waiting))
        turn.leave(0, softly=True)
    elif not was_called_back:
        turn.now_knows(ask_at_s=turn.now_s + _FIRST_PAUSE_S)


def _is_nothing_left(keeping: Keeping, given: Given) -> bool:
    """Say whether nothing will come, as far as can be known: no job was put off, and nobody's end brings another."""
    return not (keeping.leases or keeping.closed or given.others_work or given.answer.next_s is not None)


def _take_grant(turn: Turn, given: Given, grant: Grant) -> None:
    keeping, token = turn.keeping, grant.token()
    if token in keeping.leases:
        return
    lease = Lease(grant=grant, phase=Phase.STARTING, ends_s=given.asked_s + grant.lease_s)
    turn.put(lease)
    turn.now_knows(taken=keeping.taken + 1)
    turn.tell("granted", lease)
    why = _why_not(turn, lease)
    if why:
        turn.send(lease, LastWord(word=Word.RELEASE, why=why), None)
    else:
        turn.do(Begin(token=token))


def _why_not(turn: Turn, lease: Lease) -> str:
    """Say why a grant is given back unstarted; nothing if it is not."""
    if turn.keeping.leaving is not Leaving.NO:
        return "the worker is leaving"
    if turn.now_s >= lease.ends_s:
        return "the grant came too late"
    return next(iter(turn.keeping.closed.values()), "")


def _hear_order(turn: Turn, order: LeaseOrder) -> None:
    """Do what is wished of a lease; one that is not ours any more needs no order."""
    lease = next((one for one in turn.keeping.leases.values() if _is_meant(order, one)), None)
    if lease is not None:
        _obey(turn, lease, order)


def _is_meant(order: LeaseOrder, lease: Lease) -> bool:
    return (order.job, order.epoch) == (lease.token.job, lease.token.epoch)


def _take_answer(turn: Turn, answered: Answered) -> None:
    _hear_voice(turn)
    answer = answered.answer
    turn.now_knows(
        is_renewing=False,
        heartbeat_s=answer.heartbeat_s,
        lease_s=answer.lease_s,
        renew_at_s=answered.now_s if answer.wants_holdings else answered.asked_s + answer.heartbeat_s,
    )
    _hear_closed(turn, answer.closed)
    orders = {(order.job, order.epoch): order for order in answer.orders}
    for token in answered.tokens:
        lease = turn.lease(token)
        if lease is None:
            continue
        order = orders.get((token.job, token.epoch))
        if order is None or order.do is not Do.DROP:
            lease = _renewed(turn, lease, answered.asked_s + answer.lease_s)
        if order is not None:
            _obey(turn, lease, order)
    _hear_calls(turn, answer.execs)


def _hear_calls(turn: Turn, calls: tuple[ExecCall, ...]) -> None:
    """Have operators' commands run beside attempts that are ours now, and no others."""
    for call in calls:
        if turn.lease(call.token()) is not None:
            turn.do(OpenExec(call=call))


def _renewed(turn: Turn, lease: Lease, ends_s: float) -> Lease:
    # Whose job is on its way out because it ended by our clock does not come back.
    is_past = lease.is_over and not lease.keeps_on
    if not is_past:
        lease = changed(lease, ends_s=max(ends_s, lease.ends_s), is_over=False)
        turn.put(lease)
    return lease


def _obey(turn: Turn, lease: Lease, order: LeaseOrder) -> None:
    is_sending = lease.phase is Phase.SENDING
    if is_sending and (order.do is Do.RELEASE or (order.do is Do.DROP and not lease.is_over)):
        # Its last word may have been heard already, and only the answer lost: saying it again tells.
        return
    turn.stop(lease, LastWord(word=_BY_ORDER[order.do], why=order.why or str(order.do)))


def _take_silence(turn: Turn, unanswered: Unanswered) -> None:
    """Go on, and ask again: later each time, and never all workers at once."""
    if isinstance(unanswered.error, NotFound):
        # It was restarted, or somebody made it forget us.
        turn.now_knows(is_known=False)
        turn.do(Greet())
    keeping = turn.keeping
    # What will not pass by itself is told even to who knows already that nobody answers.
    is_lasting = bool(unanswered.error.data.get("is_lasting"))
    if not keeping.is_away or (is_lasting and not keeping.is_barred):
        about = {"hint": unanswered.error.hint} if is_lasting else {}
        turn.tell("away", None, why=str(unanswered.error), held=len(keeping.leases), **about)
    turn.now_knows(is_barred=keeping.is_barred or is_lasting)
    first_s = _LONGEST_PAUSE_S if isinstance(unanswered.error, RateLimited) else _FIRST_PAUSE_S
    # With leases to lose, it is asked at least three times before the first of them ends.
    longest_s = min(_LONGEST_PAUSE_S, keeping.lease_s / 4)
    again_s = turn.now_s + pause_s(keeping.misses, unanswered.jitter, first_s=first_s, longest_s=longest_s)
    if unanswered.was_claim:
        # It may have been started anew, and forgotten what only a heartbeat says: that is not left for later.
        renew_at_s = keeping.renew_at_s if keeping.is_away else min(keeping.renew_at_s, again_s)
        turn.now_knows(
            asking=None, is_called_back=False, ask_at_s=again_s, renew_at_s=renew_at_s, misses=keeping.misses + 1
        )
    else:
        turn.now_knows(is_renewing=False, renew_at_s=again_s, misses=keeping.misses + 1)


def _take_fatal(turn: Turn, fatal: Fatal) -> None:
    if turn.keeping.leaving is Leaving.NO:
        turn.tell("refused", why=str(fatal.error), hint=fatal.error.hint)
    turn.leave(fatal.error.exit_code, softly=False)
    turn.now_knows(asking=None, is_renewing=False)
    for lease in list(turn.keeping.leases.values()):
        turn.stop(lease, LastWord(word=Word.NOTHING, why=str(fatal.error)), grace_s=turn.keeping.wishes.stop_grace_s)


def _take_begin(turn: Turn, began: Began) -> None:
    turn.now_knows(has_news=turn.keeping.has_news or began.has_brought)
    lease = turn.lease(began.token)
    if lease is None:
        return
    lease = changed(lease, child=began.child, run=began.run)
    if lease.phase is not Phase.STARTING:
        # It was to be stopped while it was being started: whoever stops it saw to the child.
        turn.put(lease)
        return
    turn.put(changed(lease, phase=Phase.RUNNING))
    turn.tell("started", lease, run=began.run)
    turn.do(TellStart(token=began.token))


def _take_refusal(turn: Turn, refused: NotBegun) -> None:
    turn.now_knows(has_news=turn.keeping.has_news or refused.has_brought)
    lease = turn.lease(refused.token)
    if lease is None or lease.phase is not Phase.STARTING:
        return
    turn.tell("declined", lease, reason=refused.reason, why=refused.message)
    # What was declined would be offered again at once: somebody else may have it first.
    turn.now_knows(ask_at_s=max(turn.keeping.ask_at_s, turn.now_s + 1.0))
    last = LastWord(word=Word.DECLINE, why=refused.message, reason=refused.reason, lasts=refused.lasts)
    turn.send(lease, last, None)


def _take_end(turn: Turn, ended: Ended) -> None:
    lease = turn.lease(ended.token)
    if lease is None or lease.phase not in (Phase.STARTING, Phase.RUNNING):
        return
    end = ended.end
    turn.tell("ended", lease, state=str(end.state), why=end.message, seconds=end.seconds)
    if end.is_completed:
        turn.send(lease, LastWord(word=Word.FINISH), end)
    elif lease.is_over:
        turn.send(lease, LastWord(word=Word.NOTHING, why="its lease was over"), end)
    else:
        turn.send(lease, LastWord(word=Word.FAIL, why=end.message), end)


def _take_stop(turn: Turn, stopped: Stopped) -> None:
    lease = turn.lease(stopped.token)
    if lease is None or lease.phase is not Phase.STOPPING:
        return
    last = lease.last or LastWord(word=Word.RELEASE)
    # Who ends now was not asked whether it had come to an end by itself.
    is_asked = last.word is Word.RELEASE and turn.keeping.leaving is not Leaving.NOW
    if is_asked and stopped.end.is_completed:
        # It had just come to its end by itself.
        last = LastWord(word=Word.FINISH)
    elif is_asked and stopped.end.state is JobState.FAILED and stopped.end.is_told:
        last = LastWord(word=Word.FAIL, why=stopped.end.message)
    turn.tell("stopped", lease, why=last.why, word=str(last.word))
    turn.send(lease, last, stopped.end)


def _take_settlement(turn: Turn, settled: Settled) -> None:
    lease = turn.lease(settled.token)
    if lease is None:
        return
    last = lease.last or LastWord(word=Word.NOTHING)
    turn.tell("settled", lease, word=str(last.word), why=last.why)
    turn.remove(lease)
    if last.word is not Word.DECLINE:
        # A slot is free, and somebody listens.
        turn.now_knows(ask_at_s=min(turn.keeping.ask_at_s, turn.now_s))


def _take_staleness(turn: Turn, stale: WentStale) -> None:
    lease = turn.lease(stale.token)
    if lease is None:
        return
    if lease.phase is Phase.SENDING:
        turn.tell("dropped", lease, why=stale.message)
        turn.remove(lease)
    else:
        turn.stop(lease, LastWord(word=Word.NOTHING, why=stale.message))


def _take_closing(turn: Turn, closed: Closed) -> None:
    before = turn.keeping.closed.get(closed.by, "")
    if closed.why == before:
        return
    others = {by: why for by, why in turn.keeping.closed.items() if by != closed.by}
    turn.now_knows(
        closed={**others, closed.by: closed.why} if closed.why else others,
        renew_at_s=min(turn.keeping.renew_at_s, turn.now_s),
    )
    _tell_closed(turn, closed.by, closed.why, before)
    if closed.why and turn.keeping.asking:
        turn.call_back()
    if closed.why and closed.gives_back:
        _give_all_back(turn, closed.why)


def _take_devices(turn: Turn, devices: DevicesChanged) -> None:
    """Say hello again, with what the machine offers now. An attempt on a device that is gone fails by itself."""
    if devices.gone:
        turn.tell("devices_gone", devices=list(devices.gone))
    if devices.back:
        turn.tell("devices_back", devices=list(devices.back))
    if devices.slots is not None:
        turn.now_knows(wishes=changed(turn.keeping.wishes, slots=devices.slots))
    turn.do(Greet())


def _take_leave(turn: Turn, asked: AskedToEnd) -> None:
    keeping = turn.keeping
    if keeping.leaving is Leaving.NO:
        _leave_softly(turn, asked.exit_code, asked.why)
        return
    if keeping.leaving is Leaving.NOW:
        return
    turn.leave(asked.exit_code, softly=False)
    turn.tell("leaving_now", held=len(keeping.leases))
    last = LastWord(word=Word.RELEASE, why="the worker was told to end now")
    for lease in list(keeping.leases.values()):
        if lease.phase is Phase.SENDING:
            turn.send(lease, lease.last or last, lease.end)
        else:
            turn.stop(lease, last, grace_s=0.0)


def _leave_softly(turn: Turn, exit_code: int, why: str) -> None:
    """Take nothing more, give everything back, then end."""
    turn.leave(exit_code, softly=True)
    turn.tell("leaving", why=why, held=len(turn.keeping.leases))
    if turn.keeping.asking:
        turn.call_back()
    _give_all_back(turn, why)


def _give_all_back(turn: Turn, why: str) -> None:
    for lease in list(turn.keeping.leases.values()):
        if lease.phase is not Phase.SENDING:
            turn.stop(lease, LastWord(word=Word.RELEASE, why=why))


def _hear_voice(turn: Turn) -> None:
    if turn.keeping.is_away:
        turn.tell("back")
    turn.now_knows(misses=0, is_barred=False)


def _hear_closed(turn: Turn, why: str) -> None:
    """Take in that the coordinator gives us nothing; what runs it orders back itself if it wants to."""
    others = {by: one for by, one in turn.keeping.closed.items() if by != COORDINATOR}
    if why in others.values():
        # Our own words.
        why = ""
    before = turn.keeping.closed.get(COORDINATOR, "")
    if why == before:
        return
    turn.now_knows(closed={**others, COORDINATOR: why} if why else others)
    _tell_closed(turn, COORDINATOR, why, before)


def _tell_closed(turn: Turn, by: str, why: str, before: str) -> None:
    """Tell that it is closed, or open again. A pause comes from its owner and from the coordinator: it is told once."""
    others = [one for who, one in turn.keeping.closed.items() if who != by]
    if _is_pause(why or before) and any(_is_pause(one) for one in others):
        return
    turn.tell("closed" if why else "open", by=by, why=why)


def _is_pause(why: str) -> bool:
    return why.startswith(PAUSED)


_TAKERS: dict[type, Callable[[Turn, Any], None]] = {
    Ticked: _take_tick,
    Greeted: _take_greeting,
    Given: _take_grants,
    Answered: _take_answer,
    Unanswered: _take_silence,
    Fatal: _take_fatal,
    Began: _take_begin,
    NotBegun: _take_refusal,
    Ended: _take_end,
    Stopped: _take_stop,
    Settled: _take_settlement,
    WentStale: _take_staleness,
    Closed: _take_closing,
    DevicesChanged: _take_devices,
    AskedToEnd: _take_leave,
}
