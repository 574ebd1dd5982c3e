"""`stoker run`: a recipe or a plan file, here and now, watched to its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.failing import report
from stoker.faces.cli.grammar import Grammar, Option, Positional, duration, whole
from stoker.faces.cli.interrupting import Interruptions
from stoker.faces.cli.outcome import failure_lines, show_outcome
from stoker.faces.cli.progress import PlainScreen, Progress, Screen, SilentScreen
from stoker.model.errors import Cancelled, NoPermission, Usage
from stoker.model.events import Event, event_line
from stoker.model.frozen import changed
from stoker.model.suggest import did_you_mean
from stoker.plan.executor import MAX_IN_FLIGHT, RunOptions
from stoker.plan.graph import Plan
from stoker.worker.execution import Execution, JobResult, abandon
from stoker.worker.ordering import Order

GRAMMAR = Grammar(
    "run",
    about=(
        "Run a recipe or a plan here, now, and watch it. Stages whose results are known are not run again; what was "
        "interrupted continues with the same command. Results are also laid out as plain files in stoker-out/NAME."
    ),
    positionals=(
        Positional("RECIPE|PLAN.json", key="target", help="what to run: `stoker recipes` lists the recipes"),
        Positional("key=value", key="values", help="the recipe's arguments", is_many=True, is_required=False),
    ),
    options=(
        Option("--dry-run", help="show what would run, why, and what it may cost; run nothing"),
        Option(
            "--rerun",
            value="STAGE",
            help="run this stage although its result is known; several with commas or by giving it again",
            is_many=True,
        ),
        Option("--keep-going", help="go on with what does not depend on a stage that failed"),
        Option("--max-failures", value="N", read=whole(1), help="with --keep-going, which it implies: stop after N"),
        Option("-j", "--jobs", value="N", read=whole(1), help=f"stages at once, {MAX_IN_FLIGHT} unless told"),
        Option("--name", value="NAME", help="what the job is called; the recipe's last word unless told"),
        Option("--out", value="DIR", help="lay results out in DIR/NAME; stoker-out unless told"),
        Option("--no-out", help="keep results in the store only"),
        Option("--timeout", value="TIME", read=duration, help="stop if the whole takes longer: 90s, 15m, 2h"),
    ),
    examples=(
        "stoker run tabular/gbt data=iris lr=0.05",
        "stoker run tabular/compare --dry-run",
        "stoker run tabular/compare data=wine --rerun evaluate,report --name wine",
        "stoker run tabular/compare --json | tail -n 1",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Run, or show what a run would do."""
    rerun = [name for words in given["rerun"] for name in words.split(",") if name]
    order = call.desk().order(given["target"], read_values(given["values"]), name=given["name"] or "")
    _check_rerun(order.plan, rerun)
    if given["dry_run"]:
        from stoker.faces.cli.dry_run import show_forecast

        return show_forecast(call, order, frozenset(rerun))
    return _run(call, order, given, rerun)


def read_values(words: list[str]) -> dict[str, str]:
    """Read `key=value` words; `Usage` names every one that is not."""
    values: dict[str, str] = {}
    faults = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            faults.append(f"{word!r} is not key=value")
        elif key in values:
            faults.append(f"{key} is given twice")
        values[key] = value
    if faults:
        raise Usage("; ".join(faults), hint="an argument is one word: lr=0.1, or 'name=two words'")
    return values


def _check_rerun(plan: Plan, rerun: list[str]) -> None:
    known = [name for node in plan.nodes for name in (node.id, node.stage.name)]
    faults = [name for name in rerun if name not in known]
    if faults:
        listed = ", ".join(node.id for node in plan.nodes)
        raise Usage(
            f"--rerun: {plan.name} has no stage {' or '.join(map(repr, faults))}",
            hint=did_you_mean(faults[0], known) or f"its stages: {listed}",
        )


def _run(call: Call, order: Order, given: dict[str, Any], rerun: list[str]) -> int:
    call.out.goes_on_unread = call.out.is_watched = True
    tools = call.parts.tools
    options = RunOptions(
        max_in_flight=given["jobs"] or MAX_IN_FLIGHT,
        keep_going=given["keep_going"] or given["max_failures"] is not None,
        max_failures=given["max_failures"],
        rerun=frozenset(rerun),
        deadline_s=given["timeout"],
    )
    name = order.spec.name
    if not given["no_out"]:
        _check_out(_out_folder(call, given["out"]))
    spec = changed(order.spec, options=_options_told(options))
    screen, listener, say = _listen(call, order)
    execution = Execution(
        plan=order.plan,
        spec=spec,
        tools=tools,
        out=None if given["no_out"] else os.path.join(_out_folder(call, given["out"]), name),
        options=options,
        listeners=(listener,),
    )

    def leave() -> None:
        abandon(tools, spec, Cancelled("interrupted twice"))
        os._exit(Cancelled.exit_code)

    try:
        with Interruptions(execution.cancel, say, leave):
            job = execution.run()
    finally:
        screen.close()
    return _tell(call, order.plan, job, name)


def _tell(call: Call, plan: Plan, job: JobResult, name: str) -> int:
    if not call.flags.quiet:
        show_outcome(call, plan, job, name)
    elif job.laid_out is not None:
        call.out.line(job.laid_out.folder)
    for part in (call.parts.store.memo.trouble, call.parts.history.trouble):
        if part:
            call.out.note(f"note: an index is out of order, which costs time and nothing else: {part}")
    if job.error is None:
        return 0
    code = report(job.error, call.out, debug=call.flags.debug, is_in_stream=True)
    for line in failure_lines(job, name):
        call.out.complain(line)
    return code


def _listen(call: Call, order: Order) -> tuple[Screen, Callable[[Event, float, int], None], Callable[[str], None]]:
    """Give where news of the run go: the screen to close, the journal's listener, and a voice for signal time."""
    out = call.out
    if out.is_json:
        attempt = order.spec.attempt

        def write(event: Event, at_s: float, seq: int) -> None:
            out.json_line(event_line(event, ts=at_s, seq=seq, source=attempt))

        return SilentScreen(), write, _say_aside
    names = [f"{node.id}[0]" if node.fans_out else node.id for node in order.plan.nodes]
    if not out.is_quiet and out.is_terminal:
        from stoker.faces.cli.live import LiveScreen

        live = LiveScreen(out, call.parts.clock)
        # Not straight to the terminal, which is being drawn on.
        return live, Progress(live, out, names).take, live.mention
    screen = SilentScreen() if out.is_quiet else PlainScreen(out, call.parts.clock)
    return screen, Progress(screen, out, names).take, _say_aside


def _say_aside(text: str) -> None:
    # Inside a signal handler: the buffered streams may be in the middle of a write.
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


def _out_folder(call: Call, given: str | None) -> str:
    settings = call.parts.settings
    return os.path.join(settings.folder, given) if given else settings.out


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
    }
    return {name: value for name, value in told.items() if value not in (None, [], False)}
