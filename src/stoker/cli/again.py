"""`stoker submit --again NAME key=value`: a fleet job again with other values."""

from __future__ import annotations

from typing import Any

from stoker.cli.completion_words import remember
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Option
from stoker.cli.submission_lines import counts_text, done_text
from stoker.core.errors import Diagnostic, InvalidArgs, Refused, Usage
from stoker.devices.this_machine import submitter_name
from stoker.jobs.repeated_job import command_line
from stoker.protocol.sent_messages import RepeatJobRequest, RepeatView

_TAKEN = frozenset({"again", "dry_run", "watch", "yes", "at", "name"})
_COMES_UP_S = 5.0


def submit_again(call: CommandContext, given: dict[str, Any], options: tuple[Option, ...]) -> int:
    """Preview, confirm, submit and follow. `options` are those of the command."""
    out, ref = call.out, given["again"]
    extra = [option.names[-1] for option in options if option.key not in _TAKEN and option.is_in(given)]
    if extra:
        raise Usage(f"--again keeps all but the values: {', '.join(extra)} can't be set", hint="submit a new job")
    changes = [*([given["target"]] if given["target"] else []), *given["values"]]
    if wrong := [word for word in changes if "=" not in word]:
        raise Usage(f"--again {ref} takes key=value, got {wrong[0]}", hint=f"stoker submit --again {ref} lr=0.1")
    client = call.lookup.client_of(
        call.lookup.coordinator(given["at"]) or call.lookup.wait_for_coordinator(limit_s=_COMES_UP_S)
    )
    request = RepeatJobRequest(
        changes=tuple(changes),
        program=None if given["program"] is None else command_line(given["program"]),
        name=given["name"] or "",
        submitter=submitter_name(call.parts.settings.environment),
    )
    asks = out.is_terminal and not given["yes"]
    if given["dry_run"] or asks:
        preview = client.repeat(ref, request.model_copy(update={"dry_run": True}))
        if preview.faults:
            raise _refused(preview)
        _show(call, preview)
        if given["dry_run"]:
            answer = preview.answer
            ends = done_text(answer, call.parts.clock.wall_s()) if answer is not None else ""
            out.line(f"\n{counts_text(answer) if answer is not None else 'no jobs'}{ends}; nothing was submitted")
            return 0
        if not out.asks(f"Submit {preview.job}?", by_default=True):
            raise Refused("nothing was submitted", hint="submit without confirmation: -y")
    done = client.repeat(ref, request)
    if done.faults or done.answer is None:
        raise _refused(done)
    remember(call.parts.settings.state, "jobs", (job.shown for job in done.answer.jobs))
    if not asks:
        _show(call, done)
    out.line(f"{counts_text(done.answer)}; submitted to {client.url}")
    if given["watch"]:
        from stoker.cli.watch import watch

        return watch(call, client, done.answer.jobs)
    out.line(f"follow: stoker logs -f {done.job}")
    return 0


def _show(call: CommandContext, view: RepeatView) -> None:
    out = call.out
    for note in view.notes:
        out.note(f"note: {note}")
    for job in view.answer.jobs if view.answer is not None else ():
        is_dry_run = bool(view.answer and view.answer.dry_run)
        out.object({**job.model_dump(mode="json"), "differs": list(view.differs), "dry_run": is_dry_run})
        out.line(f"+ {job.shown}  {job.forecast or job.shown_outcome}")
    for line in view.differs:
        out.line(f"  {line}")


def _refused(view: RepeatView) -> InvalidArgs:
    faults = tuple(Diagnostic(one.key, one.message, one.hint, one.shown) for one in view.faults)
    message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the values of {view.job}"
    return InvalidArgs(message, faults=faults)
