"""Submit prepared jobs to the coordinator: preview, confirmation, upload, report and notification."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.api.submission import check_environments, preview_submission, send_submission
from stoker.cli.completion_words import remember
from stoker.cli.context import CommandContext
from stoker.cli.screens import Amount, watched
from stoker.cli.submission_lines import (
    MOST_FORESEEN,
    MOST_LISTED,
    SubmitSummary,
    add_code,
    add_data,
    as_json,
    change_lines,
    counts_text,
    done_text,
    order_lines,
)
from stoker.core.errors import Refused, StokerError, Usage
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.core.text import counted, format_size, outside, some_of
from stoker.devices.this_machine import submitter_name
from stoker.host.durable import translated
from stoker.host.folders import make_state
from stoker.host.processes import start
from stoker.protocol.job_messages import JOB_BODY, OnChangedCode, SubmissionOutcome, SubmissionResponse
from stoker.protocol.view_messages import JobView
from stoker.views.text_tables import ASCII, UNICODE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.core.job import EnvironmentChoice
    from stoker.jobs.pack.code_tree import PreparedSubmission, Shipment
    from stoker.protocol.client import FleetClient
    from stoker.protocol.environment_messages import MachineEnvironmentStatus
    from stoker.transfer.trees.tree_download import TreeFetchEstimate


# Upload of code and data before the submission.

_GOES_ON = "sent files are kept; run the same command again to continue"


def _upload(call: CommandContext, shipment: Shipment, client: FleetClient) -> None:
    from stoker.transfer.trees.tree_upload import send_tree

    amount = _Sent(call, shipment.what)
    with watched(call, amount, hint=_GOES_ON):
        try:
            sent = send_tree(
                client,
                shipment.tree,
                shipment.source(call.parts.store),
                stop=amount.over,
                heed=amount.heed,
                on_outlook=amount.look_ahead,
            )
        except StokerError:
            if amount.over.is_set():
                raise amount.error from None
            raise
    files = counted(sent.sent_files, "file")
    call.out.note(f"sent {shipment.what}: {files}, {format_size(sent.sent_bytes)}")


class _Sent(Amount):
    """Progress of the upload of a tree."""

    def __init__(self, call: CommandContext, what: str) -> None:
        self._clock = call.parts.clock
        super().__init__(f"sending {what}", None, self._clock.wall_s(), is_unicode=call.out.is_unicode)
        self.over = threading.Event()
        self._turn = threading.Lock()

    def look_ahead(self, outlook: TreeFetchEstimate) -> None:
        self._done, self._total, self._began_s = 0, outlook.missing_bytes, self._clock.wall_s()

    def heed(self, size_bytes: int) -> None:
        with self._turn:
            self.add(size_bytes)

    def stop(self, error: StokerError) -> None:
        """Stop the upload; uploaded data is kept."""
        super().stop(error)
        self.over.set()


_MOST_MACHINES = 8
_MOST_PLACED = 5
"""Maximum number of new jobs whose placement is shown."""
_MOVED = (SubmissionOutcome.NEW, SubmissionOutcome.CHANGED, SubmissionOutcome.REQUEUED)


def show_alone(call: CommandContext, prepared: PreparedSubmission) -> int:
    """Show what would be submitted if no coordinator is known."""
    out = call.out
    summary = SubmitSummary(call)
    add_code(call, summary, prepared, None)
    summary.show()
    for order in prepared.jobs:
        out.object({**JOB_BODY.dump_python(order, mode="json"), "outcome": None, "dry_run": True})
    for line in order_lines(prepared.jobs, columns=out.columns):
        out.line(line)
    out.line(f"\n{counted(len(prepared.jobs), 'job')}; no coordinator is known, nothing was submitted")
    return 0


def submit(call: CommandContext, given: dict[str, Any], prepared: PreparedSubmission, client: FleetClient) -> int:
    """Preview, confirm, submit and follow."""
    out = call.out
    if not prepared.jobs and not prepared.hosts:
        out.line("nothing to submit")
        return 0
    summary = SubmitSummary(call)
    add_code(call, summary, prepared, client if given["dry_run"] else None)
    prepared = check_environments(client, prepared, partial(_add_environment, call, summary))
    add_data(call, summary, prepared, client)
    summary.show()
    changed_code = OnChangedCode.RERUN if given["rerun"] else OnChangedCode.KEEP
    asks = out.is_terminal and not given["yes"]
    if given["dry_run"] or asks:
        preview = preview_submission(client, prepared, call.parts, changed_code)
        _show(call, prepared, preview, MOST_FORESEEN if given["dry_run"] else MOST_LISTED)
        if given["dry_run"]:
            _print_json(call, prepared, preview)
            ends = done_text(preview, call.parts.clock.wall_s())
            out.line(f"\n{counts_text(preview)}{ends}; nothing was submitted")
            return 0
        if asks and not (given["rerun"] or given["keep"]):
            changed_code = _ask_about_kept(call, preview)
        if not _confirm(call, preview, changed_code):
            raise Refused("nothing was submitted", hint="submit without confirmation: -y")
    done = send_submission(
        client,
        prepared,
        call.parts,
        upload=lambda shipment: _upload(call, shipment, client),
        on_changed_code=changed_code,
        # A user who was asked has seen the preview already.
        is_checked=asks,
    )
    remember(call.parts.settings.state, "jobs", (job.shown for job in done.jobs))
    _print_json(call, prepared, done)
    if not asks:
        _show(call, prepared, done)
    _warn_about_kept(call, done)
    has_moved = any(job.outcome in _MOVED for job in done.jobs)
    out.line(f"{counts_text(done)}{'; submitted to' if has_moved else '; nothing changed at'} {client.url}")
    _hint_at_ended(call, done)
    if given["notify"]:
        notify(call, given["notify"], [job.id for job in done.jobs], client, at=given["at"] or "")
    _show_places(call, done, client)
    if given["watch"]:
        from stoker.cli.watch import watch

        return watch(call, client, done.jobs)
    if prepared.jobs and not out.is_quiet:
        out.line(_follow(done.jobs[0].shown))
    return 0


def _add_environment(
    call: CommandContext,
    summary: SubmitSummary,
    choices: Sequence[EnvironmentChoice],
    machines: Sequence[MachineEnvironmentStatus],
) -> None:
    """Add the status of an environment on each machine."""
    files = " or ".join(dict.fromkeys(one.path or f"python {one.python}" for one in choices))
    if call.out.is_json:
        call.out.object({"environment": files, "machines": {one.machine: one.to_dict() for one in machines}})
        return
    shown = some_of([one.text for one in machines], _MOST_MACHINES)
    summary.add(f"env {outside(files)}: {outside(shown) or 'no machines'}")


def _show(
    call: CommandContext, prepared: PreparedSubmission, answer: SubmissionResponse, most: int = MOST_LISTED
) -> None:
    for line in change_lines(prepared.jobs, answer, source=prepared.source, columns=call.out.columns, most=most):
        call.out.line(line)


def _print_json(call: CommandContext, prepared: PreparedSubmission, answer: SubmissionResponse) -> None:
    if call.out.is_json:
        for order, outcome in zip(prepared.jobs, answer.jobs, strict=True):
            call.out.object({**as_json(order, outcome, dry_run=answer.dry_run), "all_done_s": answer.done_s})
        for name in answer.vanished:
            call.out.object({"name": name, "outcome": "vanished", "dry_run": answer.dry_run})


def _ask_about_kept(call: CommandContext, preview: SubmissionResponse) -> OnChangedCode:
    kept = [job for job in preview.jobs if job.outcome is SubmissionOutcome.KEPT]
    if not kept:
        return OnChangedCode.KEEP
    them = (
        f"{kept[0].shown} has completed, and its" if len(kept) == 1 else f"{len(kept):,} jobs have completed, and their"
    )
    again = call.out.asks(f"{them} code has changed. Run again?")
    return OnChangedCode.RERUN if again else OnChangedCode.KEEP


def _confirm(call: CommandContext, preview: SubmissionResponse, changed_code: OnChangedCode) -> bool:
    moving = sum(job.outcome in _MOVED for job in preview.jobs)
    if changed_code is OnChangedCode.RERUN:
        moving += sum(job.outcome is SubmissionOutcome.KEPT for job in preview.jobs)
    return not moving or call.out.asks(f"Submit {counted(moving, 'job')}?", by_default=True)


def _warn_about_kept(call: CommandContext, answer: SubmissionResponse) -> None:
    """Warn of kept results whose code has changed."""
    kept = [job for job in answer.jobs if job.outcome is SubmissionOutcome.KEPT]
    if kept:
        signs = UNICODE if call.out.is_unicode else ASCII
        names = ", ".join(job.shown for job in kept[:5]) + (", …" if len(kept) > 5 else "")
        call.out.complain(
            f"{signs.warned} KEPT, not run again: {names}: completed, and the code has changed "
            f"({counted(len(kept), 'job')}); --rerun runs them again"
        )


def _hint_at_ended(call: CommandContext, answer: SubmissionResponse) -> None:
    """Print how to start failed and cancelled jobs again."""
    ended = [
        job
        for job in answer.jobs
        if job.outcome is SubmissionOutcome.KNOWN and job.state in (JobState.FAILED, JobState.CANCELLED)
    ]
    outdated = [job for job in answer.jobs if job.state == JobState.COMPLETED and job.changes == ("code_tree",)]
    if outdated:
        them = f"{outdated[0].shown} stays" if len(outdated) == 1 else f"{counted(len(outdated), 'job')} stay"
        call.out.note(f"hint: {them} completed, although other files of the project changed; --rerun runs again")
    if ended:
        name, whose = ended[0].shown, ended[0].submitter
        how = f"contact {whose} or an operator" if whose else f"stoker jobs requeue {name}"
        call.out.note(f"hint: {name} is {ended[0].state}; to start it again: {how}")


def _show_places(call: CommandContext, answer: SubmissionResponse, client: FleetClient) -> None:
    """Print the placement of the first new jobs, as the coordinator explains it."""
    new = [job for job in answer.jobs if job.outcome in (SubmissionOutcome.NEW, SubmissionOutcome.REQUEUED)]
    if call.out.is_json or call.out.is_quiet or not 0 < len(new) <= _MOST_PLACED:
        return
    for job in new:
        try:
            verdict = client.explain(job.id).verdict
        except StokerError:
            # The jobs are submitted in any case.
            return
        call.out.line(f"  {job.shown}  {verdict}")


def _follow(name: str) -> str:
    return f"follow: stoker logs -f {name} · stoker jobs · stoker explain {name}"


# `stoker submit --notify URL|CMD`: a webhook for the ends of a submission's jobs, or a command after the last.

LOG = "notify.log"
_PROGRAM = "stoker.app.notify_main"


def is_address(target: str) -> bool:
    """Return True if it is a webhook's URL, False if it is a command."""
    return "://" in target.split(maxsplit=1)[0] if target.split() else False


def notify(call: CommandContext, target: str, jobs: Sequence[str], client: FleetClient, *, at: str) -> None:
    """Set up the notification after the submission."""
    from stoker.protocol.operator_messages import MOST_HOOKED_JOBS

    if not jobs:
        return
    if len(jobs) > MOST_HOOKED_JOBS:
        call.out.note(f"note: no notification: {len(jobs):,} jobs are more than {MOST_HOOKED_JOBS:,}")
    elif is_address(target):
        _add_webhook(call, target, jobs, client)
    else:
        _run_here(call, target, jobs, at=at)


def check_target(target: str) -> None:
    """Raise `Usage` for an empty target, before anything is submitted."""
    if not target.strip():
        raise Usage("--notify: empty value", hint="--notify https://…, or --notify 'a command'")


def _add_webhook(call: CommandContext, url: str, jobs: Sequence[str], client: FleetClient) -> None:
    from stoker.protocol.operator_messages import WebhookRequest

    try:
        made = client.make_hook(
            WebhookRequest(url=url, jobs=tuple(jobs), by=submitter_name(call.parts.settings.environment))
        )
    except StokerError as error:
        # The jobs are submitted, with or without a webhook.
        call.out.note(f"note: no webhook for {url}: {error.message}{f' ({error.hint})' if error.hint else ''}")
        return
    call.out.note(f"webhook {made.hook.id}: {made.hook.url} gets a message as each job ends, signed with")
    call.out.note(f"  {made.secret}")


def _run_here(call: CommandContext, command: str, jobs: Sequence[str], *, at: str) -> None:
    settings = call.parts.settings
    path = os.path.join(settings.state, LOG)
    make_state(settings.state)
    with translated(path):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = start(
            [sys.executable, "-m", _PROGRAM],
            cwd=settings.folder,
            env=settings.environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    finally:
        os.close(log)
    ticket = dumps({"at": at, "jobs": list(jobs), "command": command}).encode() + b"\n"
    if child.stdin is not None:
        child.stdin.write(ticket)
        child.stdin.close()
    call.out.note(f"runs here when all jobs have ended: {command}  (process {child.identity.pid}, log {path})")


# The variables of the command that runs when a submission has ended, from the states of its jobs.

PREFIX = "STOKER_NOTIFY_"
_MOST_NAMES = 100


def notice_variables(views: Iterable[JobView], *, url: str) -> dict[str, str]:
    """Return the variables: the worst STATE, the number of jobs in each state, and their names."""
    jobs = list(views)
    counts = Counter(view.state for view in jobs)
    state = next((one for one in _WORST_FIRST if counts[one]), JobState.COMPLETED)
    failed = [view for view in jobs if view.state == JobState.FAILED]
    variables = {
        "STATE": state.value,
        "JOBS": str(len(jobs)),
        **{one.value.upper(): str(counts[one]) for one in _WORST_FIRST},
        "NAMES": " ".join(view.name for view in jobs[:_MOST_NAMES]),
        "IDS": " ".join(view.id for view in jobs[:_MOST_NAMES]),
        "WHY": failed[0].why if failed else "",
        "URL": url,
    }
    return {f"{PREFIX}{name}": value for name, value in variables.items()}


_WORST_FIRST = (JobState.FAILED, JobState.CANCELLED, JobState.COMPLETED)
