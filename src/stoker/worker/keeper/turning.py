"""One decision on its way: what a keeper knows changes, instructions gather, and at the end whatever is due is done."""

from __future__ import annotations

from typing import Any

from stoker.model.fleet_errors import Drained
from stoker.model.frozen import changed
from stoker.model.leases import Token
from stoker.wire.leasing import Grant
from stoker.worker.keeper.ending import AttemptEnd
from stoker.worker.keeper.instructions import (
    AskForWork,
    CallBack,
    Exit,
    Forget,
    Instruction,
    Renew,
    SayNow,
    Send,
    Stop,
    Tell,
)
from stoker.worker.keeper.state import Keeping, LastWord, Lease, Leaving, Phase, Word

HURRY_S = 2.0
"""How long what runs under a lease that is over may take to stop: less than the coordinator waits for before it gives
the job to another (`FleetTimes.grace_s`)."""
LAST_MOMENT_S = 1.0
"""How long who is told to end now waits for the coordinator to hear it."""
_RANK = {Word.RELEASE: 0, Word.CANCELLED: 1, Word.NOTHING: 2}


class Turn:
    """One decision on its way."""

    def __init__(self, keeping: Keeping, now_s: float) -> None:
        self.keeping = keeping
        self.now_s = now_s
        self.instructions: list[Instruction] = []

    def do(self, *instructions: Instruction) -> None:
        self.instructions += instructions

    def tell(self, kind: str, lease: Lease | None = None, **fields: Any) -> None:
        about = _about(lease.grant) if lease is not None else {}
        self.do(Tell(kind=kind, fields={**about, **fields}))

    def now_knows(self, **fields: Any) -> None:
        self.keeping = changed(self.keeping, **fields)

    def lease(self, token: Token) -> Lease | None:
        return self.keeping.leases.get(token)

    def put(self, lease: Lease) -> None:
        self.now_knows(leases={**self.keeping.leases, lease.token: lease})

    def remove(self, lease: Lease) -> None:
        self.now_knows(leases={token: one for token, one in self.keeping.leases.items() if token != lease.token})
        self.do(Forget(token=lease.token))

    def stop(self, lease: Lease, last: LastWord, *, grace_s: float | None = None) -> None:
        """Let an attempt end and say this of it then; what weighs more than what was wanted before replaces it."""
        if lease.last is not None and _RANK.get(lease.last.word, 0) > _RANK.get(last.word, 0):
            last = lease.last
        if lease.phase is Phase.SENDING:
            self._stop_sending(lease, last)
            return
        is_new = lease.phase is not Phase.STOPPING
        self.put(changed(lease, phase=Phase.STOPPING, last=last))
        if is_new or grace_s is not None:
            wanted_s = self.keeping.wishes.stop_grace_s if grace_s is None else grace_s
            self.do(Stop(token=lease.token, grace_s=wanted_s))
        if is_new:
            self.tell("stopping", lease, why=last.why)

    def _stop_sending(self, lease: Lease, last: LastWord) -> None:
        """Nothing of it runs any more; what is being sent may be no longer wanted."""
        if last.word is Word.NOTHING:
            self.tell("dropped", lease, why=last.why)
            self.remove(lease)
        elif last.word is Word.CANCELLED and (lease.last is None or lease.last.word is not Word.CANCELLED):
            self.send(lease, last, lease.end)

    def send(self, lease: Lease, last: LastWord, end: AttemptEnd | None) -> None:
        """Let its last word be said; nothing, if it is no longer ours to speak of."""
        if last.word is Word.NOTHING:
            self.tell("dropped", lease, why=last.why)
            self.remove(lease)
            return
        if self.keeping.leaving is Leaving.NOW:
            self._say_now(lease, last, end)
            return
        self.put(changed(lease, phase=Phase.SENDING, last=last, end=end))
        self.do(Send(token=lease.token, last=last, end=end))

    def _say_now(self, lease: Lease, last: LastWord, end: AttemptEnd | None) -> None:
        """Let its last word be said without what belongs to it: a result that did not go in time is made again."""
        if last.word is Word.FINISH:
            last = LastWord(word=Word.RELEASE, why="the worker was told to end before its result had gone")
        until_s = self.now_s + LAST_MOMENT_S
        self.put(changed(lease, phase=Phase.SENDING, last=last, end=end, say_until_s=until_s))
        self.do(SayNow(token=lease.token, last=last, end=end))

    def look_around(self) -> None:
        """Do what is due: end leases, renew, ask for work, leave."""
        self.end_leases()
        self._end_waiting()
        keeping = self.keeping
        if keeping.leaving is not Leaving.NO:
            if not keeping.leases and (not keeping.asking or keeping.leaving is Leaving.NOW):
                self.do(Exit(code=keeping.exit_code))
            elif self._may_renew(keeping):
                self._renew()
            return
        if self._may_renew(keeping):
            self._renew()
        is_free = keeping.is_known and not keeping.leases and not keeping.asking
        if is_free and keeping.wishes.is_once and keeping.taken:
            self._exit(0)
        elif is_free and keeping.wishes.until_idle and keeping.closed:
            # It would wait for whoever closed it: it is to be started again when that is over.
            self._exit(Drained.exit_code)
        elif keeping.asking == 0 and keeping.wanted:
            # It only listens, and there is room now.
            self.call_back()
        elif self._may_ask(keeping):
            self.now_knows(asking=keeping.wanted)
            self.do(AskForWork(most=keeping.wanted))

    def _exit(self, code: int) -> None:
        self.leave(code, softly=True)
        self.do(Exit(code=code))

    def call_back(self) -> None:
        """Have an open question answered now: what it brought must not be lost."""
        if self.keeping.asking is not None and not self.keeping.is_called_back:
            self.now_knows(is_called_back=True)
            self.do(CallBack())

    def _may_ask(self, keeping: Keeping) -> bool:
        has_reason = bool(keeping.wanted or keeping.leases)
        return has_reason and keeping.is_known and keeping.asking is None and self.now_s >= keeping.ask_at_s

    def _may_renew(self, keeping: Keeping) -> bool:
        is_time = keeping.has_news or self.now_s >= keeping.renew_at_s
        is_due = keeping.is_known and not keeping.is_renewing and is_time
        return is_due and keeping.leaving is not Leaving.NOW

    def _renew(self) -> None:
        self.now_knows(is_renewing=True, has_news=False)
        self.do(Renew())

    def end_leases(self) -> None:
        """Notice which leases are over by our own clock."""
        for held in list(self.keeping.leases.values()):
            if held.is_over:
                self._hurry(held)
            if held.is_over or self.now_s < held.ends_s or held.is_harmless:
                continue
            lease = changed(held, is_over=True)
            self.put(lease)
            if lease.keeps_on and (lease.last is None or lease.last.word is Word.FINISH):
                self.tell("lease_over", lease, why="it goes on, and its result is offered when the coordinator is back")
            else:
                self.stop(lease, LastWord(word=Word.NOTHING, why="its lease was not renewed in time"))

    def _hurry(self, lease: Lease) -> None:
        """End what was asked to stop when its lease ended: somebody else may have its job in a moment."""
        is_due = lease.phase is Phase.STOPPING and self.now_s >= lease.ends_s + HURRY_S
        if is_due and not lease.is_hurried:
            self.put(changed(lease, is_hurried=True))
            self.do(Stop(token=lease.token, grace_s=0.0))

    def _end_waiting(self) -> None:
        """Drop what nobody heard in the last moment."""
        for lease in list(self.keeping.leases.values()):
            if lease.say_until_s is not None and self.now_s >= lease.say_until_s:
                self.tell("dropped", lease, why="the coordinator was not to be told in time")
                self.remove(lease)

    def leave(self, code: int, *, softly: bool) -> None:
        self.now_knows(leaving=Leaving.SOFTLY if softly else Leaving.NOW, exit_code=code)


def _about(grant: Grant) -> dict[str, Any]:
    return {"job": grant.shown, "id": grant.job, "attempt": grant.attempt, "epoch": grant.epoch}
