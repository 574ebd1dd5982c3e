"""An order on its way: screens, interruptions, and what is said when it is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.failing import report
from stoker.faces.cli.interrupting import Interruptions, say_aside
from stoker.faces.cli.outcome import failure_lines, show_outcome
from stoker.faces.cli.progress import Progress
from stoker.faces.cli.screens import PlainScreen, Screen, SilentScreen
from stoker.faces.cli.unwritten import unwritten_text
from stoker.faces.view.company import CompanyNews, forecast_lines
from stoker.faces.view.signs import ASCII, UNICODE
from stoker.faces.view.trials import titles_of
from stoker.model.errors import Cancelled, NoPermission
from stoker.model.events import Event, event_line
from stoker.model.frozen import changed
from stoker.plan.run_options import MAX_IN_FLIGHT, RunOptions
from stoker.worker.company_forecast import CompanyForecast
from stoker.worker.continuing import Continuation
from stoker.worker.execution import Execution, JobResult, abandon
from stoker.worker.ordering import Order
from stoker.worker.trials import is_sweep


def run_order(call: Call, order: Order, going_on: Continuation, given: dict[str, Any], rerun: frozenset[str]) -> int:
    """Run an order to its end; give the exit code."""
    call.out.goes_on_unread = call.out.is_watched = True
    tools = call.parts.tools
    if given["contain"] is not None:
        call.parts.contain_by(given["contain"])
    if not given["no_out"]:
        _check_out(_out_folder(call, given["out"]))
    options = _options(order, given, rerun, going_on)
    name = order.spec.name
    spec = changed(order.spec, options=_options_told(options))
    if order.program is not None:
        _introduce(call, order, options)
    if going_on.index is not None:
        going_on.index.begin()
    tracking = None
    if given["wandb"] is not None:
        from stoker.faces.cli.wandb import tracking_of

        tracking = tracking_of(call, order, given["wandb"])
    companies = [] if options.solo else _companies_foreseen(call, order, going_on, rerun)
    signs = UNICODE if call.out.is_unicode else ASCII
    lines = tuple(line for one in companies for line in forecast_lines(one, signs))
    company = CompanyNews(lines=lines, is_solo=options.solo)
    screen, listener, say = _listen(call, order, company)
    execution = Execution(
        plan=order.plan,
        spec=spec,
        tools=tools,
        out=None if given["no_out"] else os.path.join(_out_folder(call, given["out"]), name),
        options=options,
        listeners=(listener,),
        papers=order.papers,
        trials=order.trials,
        index=going_on.index,
        ran_code=going_on.ran_code,
        gives_up=not given["keep_going"],
        followers=() if tracking is None else (tracking,),
        foreseen={"companies": [one.to_json() for one in companies]} if companies else {},
    )

    def leave() -> None:
        abandon(tools, spec, Cancelled("interrupted twice"))
        os._exit(Cancelled.exit_code)

    try:
        with Interruptions(execution.cancel, say, leave):
            job = execution.run()
    finally:
        screen.close()
    for end in tracking.ends if tracking is not None else ():
        if end.where:
            call.out.note(f"wandb: {end.where}; `wandb sync` sends what was kept offline")
    return _tell(call, order, job, company)


def _options(order: Order, given: dict[str, Any], rerun: frozenset[str], going_on: Continuation) -> RunOptions:
    return RunOptions(
        max_in_flight=given["jobs"] or (1 if order.program is not None else MAX_IN_FLIGHT),
        keep_going=is_sweep(order.trials) or given["keep_going"] or given["max_failures"] is not None,
        max_failures=given["max_failures"],
        rerun=rerun,
        kept=going_on.kept,
        deadline_s=given["timeout"],
        solo=given["solo"],
    )


def _introduce(call: Call, order: Order, options: RunOptions) -> None:
    """Say what a run of programs works with, before it starts."""
    warning = call.parts.containment.warning
    if warning:
        # Also to those who asked for quiet: a machine that freezes is not what they asked for.
        call.out.complain(f"warning: {warning}")
    if not call.out.is_quiet:
        from stoker.faces.cli.machine import machine_line

        call.out.line(machine_line(call.parts, order, options))


def _tell(call: Call, order: Order, job: JobResult, company: CompanyNews) -> int:
    name = order.spec.name
    if is_sweep(order.trials):
        from stoker.faces.cli.sweep_outcome import show_sweep_outcome

        show_sweep_outcome(call, order, job, company)
    elif not call.flags.quiet:
        show_outcome(call, order, job)
    elif job.laid_out is not None:
        call.out.line(job.laid_out.folder)
    unwritten = unwritten_text(order, job.result.nodes) if job.result is not None else ""
    if unwritten:
        call.out.note(f"note: {unwritten}")
    for part in (call.parts.store.memo.trouble, call.parts.history.trouble):
        if part:
            call.out.note(f"note: an index is out of order, which costs time and nothing else: {part}")
    if job.error is None:
        return 0
    code = report(job.error, call.out, debug=call.flags.debug, is_in_stream=True)
    for line in () if is_sweep(order.trials) else failure_lines(job, name):
        call.out.complain(line)
    return code


def _listen(
    call: Call, order: Order, company: CompanyNews
) -> tuple[Screen, Callable[[Event, float, int], None], Callable[[str], None]]:
    """Give where news of the run go: the screen to close, the journal's listener, and a voice for signal time."""
    out = call.out
    if out.is_json:
        attempt = order.spec.attempt

        def write(event: Event, at_s: float, seq: int) -> None:
            out.json_line(event_line(event, ts=at_s, seq=seq, source=attempt))

        return SilentScreen(), write, say_aside
    titles = titles_of(order.plan, order.trials, job=order.spec.name, is_solo=company.is_solo)
    near = call.parts.settings.folder
    if not out.is_quiet and out.is_terminal:
        from stoker.faces.cli.live import LiveScreen

        live = LiveScreen(out, call.parts.clock)
        # Not straight to the terminal, which is being drawn on.
        return live, Progress(live, out, titles, near=near, company=company).take, live.mention
    screen = SilentScreen() if out.is_quiet else PlainScreen(out, call.parts.clock)
    return screen, Progress(screen, out, titles, near=near, company=company).take, say_aside


def _out_folder(call: Call, given: str | None) -> str:
    settings = call.parts.settings
    return os.path.join(settings.folder, given) if given else settings.out


def _companies_foreseen(
    call: Call, order: Order, going_on: Continuation, rerun: frozenset[str]
) -> list[CompanyForecast]:
    """Return what is foreseen of trials that will share a process; nothing where none will."""
    if not any(node.stage.together for node in order.plan.nodes):
        return []
    from stoker.faces.cli.companies import companies_here
    from stoker.plan.preview import preview

    parts, kept = call.parts, going_on.kept
    seen = preview(order.plan, cache=parts.cache, history=parts.history, rerun=rerun, kept=kept)
    return companies_here(call, order, seen)


def _check_out(folder: str) -> None:
    """Find out before the work, not after it, whether results can be laid out."""
    try:
        os.makedirs(folder, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        raise NoPermission(
            f"results can't be written to {folder}", hint="give another folder with --out DIR, or none with --no-out"
        )


def _options_told(options: RunOptions) -> dict[str, Any]:
    told = {
        "jobs": options.max_in_flight,
        "keep_going": options.keep_going,
        "max_failures": options.max_failures,
        "rerun": sorted(options.rerun),
        "timeout_s": options.deadline_s,
        "solo": options.solo,
    }
    return {name: value for name, value in told.items() if value not in (None, [], False)}
