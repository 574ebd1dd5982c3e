"""How machines are and who is told of events, as asked of a coordinator."""

from __future__ import annotations

from stoker.wire.asking import DoneView
from stoker.wire.health import HookAsk, HookList, HookMade, HookTried, HookView, MachineReport, Verdict
from stoker.wire.speaking import Question, Speaker, part

_VERDICT_S = 600.0
_TRY_S = 60.0


class HealthCalls:
    """A part of a `FleetClient`."""

    _speaker: Speaker

    def report(self, report: MachineReport) -> DoneView:
        """Say what a worker found out about its machine."""
        path = f"/v1/machines/{part(report.worker)}/report"
        return self._speaker.ask(Question(path=path, method="POST", body=report, is_repeatable=True), DoneView)

    def make_hook(self, asked: HookAsk) -> HookMade:
        """Have somebody told of events. What signs the messages is shown this once."""
        return self._speaker.ask(Question(path="/v1/hooks", method="POST", body=asked), HookMade)

    def hooks(self) -> tuple[HookView, ...]:
        """Give all hooks."""
        return self._speaker.ask(Question(path="/v1/hooks"), HookList).hooks

    def close_hook(self, hook: int) -> DoneView:
        """Tell one nothing more."""
        return self._speaker.ask(Question(path=f"/v1/hooks/{hook}", method="DELETE", is_repeatable=True), DoneView)

    def try_hook(self, hook: int) -> HookTried:
        """Send it a message that says nothing."""
        return self._speaker.ask(Question(path=f"/v1/hooks/{hook}/test", method="POST", waits_s=_TRY_S), HookTried)

    def verdict(self, *, jobs: int = 20_000) -> Verdict:
        """Have the history checker run over the newest jobs."""
        question = Question(path="/v1/history/verdict", query={"jobs": jobs}, waits_s=_VERDICT_S)
        return self._speaker.ask(question, Verdict)
