"""One submission through the coordinator: what it would change, the questions, what it did, and how to follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.environments import look_at_environments
from stoker.faces.cli.fleet.ship import ship
from stoker.faces.cli.fleet.submit_changes import (
    MOST_FORESEEN,
    MOST_LISTED,
    change_lines,
    counts_text,
    done_text,
    order_lines,
    told,
)
from stoker.faces.cli.fleet.submit_summary import Summary, add_code, add_data
from stoker.faces.view.signs import ASCII, UNICODE
from stoker.model.errors import Refused, StokerError
from stoker.model.lifecycle import JobState
from stoker.wire.orders import OnChangedCode, Outcome, Submitted
from stoker.worker.submitting.person import who_asks

if TYPE_CHECKING:
    from stoker.wire.client import FleetClient
    from stoker.worker.submitting.orders import Orders

_MOST_PLACED = 5
"""Of so many new jobs it is shown where they would go."""
_KEY_WORDS = 4
_MOVED = (Outcome.NEW, Outcome.CHANGED, Outcome.REQUEUED)


def show_alone(call: Call, orders: Orders) -> int:
    """Show what would be submitted where there is nobody to ask what that would change."""
    out = call.out
    summary = Summary(call)
    add_code(call, summary, orders, None)
    summary.show()
    for order in orders.jobs:
        out.object({**order.model_dump(mode="json"), "outcome": None, "dry_run": True})
    for line in order_lines(orders.jobs, columns=out.columns):
        out.line(line)
    out.line(f"\n{_jobs(len(orders.jobs))}; no coordinator was asked, nothing was submitted")
    return 0


def submit(call: Call, given: dict[str, Any], orders: Orders, client: FleetClient) -> int:
    """Ask what would change, ask the person, submit, and follow."""
    out = call.out
    if not orders.jobs and not orders.hosts:
        out.line("there is nothing to submit")
        return 0
    summary = Summary(call)
    add_code(call, summary, orders, client if given["dry_run"] else None)
    orders = look_at_environments(call, orders, client, summary.add)
    add_data(call, summary, orders, client)
    summary.show()
    sending = _Sending(call, orders, client)
    changed_code = OnChangedCode.RERUN if given["rerun"] else OnChangedCode.KEEP
    asks = out.is_terminal and not given["yes"]
    if given["dry_run"] or asks:
        preview = sending.send(changed_code, dry_run=True)
        _show(call, orders, preview, MOST_FORESEEN if given["dry_run"] else MOST_LISTED)
        if given["dry_run"]:
            _tell(call, orders, preview)
            ends = done_text(preview, call.parts.clock.wall_s())
            out.line(f"\n{counts_text(preview)}{ends}; nothing was submitted")
            return 0
        if asks and not (given["rerun"] or given["keep"]):
            changed_code = _ask_about_kept(call, preview)
        if not _confirm(call, preview, changed_code):
            raise Refused("nothing was submitted", hint="-y submits without asking")
    # Whoever was asked has seen it already.
    ship(call, orders, client, lambda: asks or sending.send(changed_code, dry_run=True))
    done = sending.send(changed_code, dry_run=False)
    _tell(call, orders, done)
    if not asks:
        _show(call, orders, done)
    _warn_about_kept(call, done)
    has_moved = any(job.outcome in _MOVED for job in done.jobs)
    out.line(f"{counts_text(done)}{'; submitted to' if has_moved else '; nothing changed at'} {client.url}")
    _hint_at_ended(call, done)
    if given["notify"]:
        from stoker.faces.cli.fleet.notifying import notify

        notify(call, given["notify"], [job.id for job in done.jobs], client, at=given["at"] or "")
    _show_places(call, done, client)
    if given["watch"]:
        from stoker.faces.cli.fleet.watching import watch

        return watch(call, client, done.jobs)
    if orders.jobs and not out.is_quiet:
        out.line(_follow(done.jobs[0].shown))
    return 0


class _Sending:
    """The same jobs, under one key: a repeat after a lost answer changes nothing."""

    def __init__(self, call: Call, orders: Orders, client: FleetClient) -> None:
        parts = call.parts
        self._key = "".join(f"{parts.entropy():08x}" for _ in range(_KEY_WORDS))
        self._submitter = who_asks(parts.settings.environment)
        self._orders = orders
        self._client = client

    def send(self, changed_code: OnChangedCode, *, dry_run: bool) -> Submitted:
        return self._client.submit(
            self._orders.submission(
                key="" if dry_run else self._key,
                submitter=self._submitter,
                on_changed_code=changed_code,
                dry_run=dry_run,
            )
        )


def _show(call: Call, orders: Orders, answer: Submitted, most: int = MOST_LISTED) -> None:
    for line in change_lines(orders.jobs, answer, source=orders.source, columns=call.out.columns, most=most):
        call.out.line(line)


def _tell(call: Call, orders: Orders, answer: Submitted) -> None:
    if call.out.is_json:
        for order, outcome in zip(orders.jobs, answer.jobs, strict=True):
            call.out.object({**told(order, outcome, dry_run=answer.dry_run), "all_done_s": answer.done_s})
        for name in answer.vanished:
            call.out.object({"name": name, "outcome": "vanished", "dry_run": answer.dry_run})


def _ask_about_kept(call: Call, preview: Submitted) -> OnChangedCode:
    kept = [job for job in preview.jobs if job.outcome is Outcome.KEPT]
    if not kept:
        return OnChangedCode.KEEP
    them = (
        f"{kept[0].shown} has completed, and its" if len(kept) == 1 else f"{len(kept):,} jobs have completed, and their"
    )
    again = call.out.asks(f"{them} code is another now. Run again?")
    return OnChangedCode.RERUN if again else OnChangedCode.KEEP


def _confirm(call: Call, preview: Submitted, changed_code: OnChangedCode) -> bool:
    moving = sum(job.outcome in _MOVED for job in preview.jobs)
    if changed_code is OnChangedCode.RERUN:
        moving += sum(job.outcome is Outcome.KEPT for job in preview.jobs)
    return not moving or call.out.asks(f"Submit {_jobs(moving)}?", by_default=True)


def _warn_about_kept(call: Call, answer: Submitted) -> None:
    """Say loudly whose old result stays although its code is another now."""
    kept = [job for job in answer.jobs if job.outcome is Outcome.KEPT]
    if kept:
        signs = UNICODE if call.out.is_unicode else ASCII
        names = ", ".join(job.shown for job in kept[:5]) + (", …" if len(kept) > 5 else "")
        call.out.complain(
            f"{signs.warned} KEPT, not run again: {names}: completed with other code than there is now "
            f"({_jobs(len(kept))}); --rerun runs them again"
        )


def _hint_at_ended(call: Call, answer: Submitted) -> None:
    """Say how to start again what stands there without having completed."""
    ended = [
        job
        for job in answer.jobs
        if job.outcome is Outcome.KNOWN and job.state in (JobState.FAILED, JobState.CANCELLED)
    ]
    outdated = [job for job in answer.jobs if job.state == JobState.COMPLETED and job.changes == ("code_tree",)]
    if outdated:
        them = f"{outdated[0].shown} stays" if len(outdated) == 1 else f"{_jobs(len(outdated))} stay"
        call.out.note(f"hint: {them} completed, though other files of the project changed since; --rerun runs again")
    if ended:
        name, whose = ended[0].shown, ended[0].submitter
        how = f"ask {whose} or an operator to requeue it" if whose else f"stoker jobs requeue {name} starts it again"
        call.out.note(f"hint: {name} stays {ended[0].state}: {how}")


def _show_places(call: Call, answer: Submitted, client: FleetClient) -> None:
    """Show where the first new jobs stand, by the coordinator's own explanation."""
    new = [job for job in answer.jobs if job.outcome in (Outcome.NEW, Outcome.REQUEUED)]
    if call.out.is_json or call.out.is_quiet or not 0 < len(new) <= _MOST_PLACED:
        return
    for job in new:
        try:
            verdict = client.explain(job.id).verdict
        except StokerError:
            # They are submitted whatever can be said about them.
            return
        call.out.line(f"  {job.shown}  {verdict}")


def _follow(name: str) -> str:
    return f"follow: stoker logs -f {name} · stoker jobs · stoker explain {name}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
