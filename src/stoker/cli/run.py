"""`stoker run`: a recipe, a plan file or any program, here and now, watched to its end."""

from __future__ import annotations

from typing import Any

from stoker.api.job import job_story
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AUTO, Grammar, Option, Positional, duration, ranks, whole
from stoker.cli.local_run import CommandInputFetcher, run_order
from stoker.cli.run_request import read_wanted
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import Refused, TooManyTrials, UnknownRecipe, Usage
from stoker.core.job import JobState
from stoker.core.text import did_you_mean
from stoker.engine.plan import Plan
from stoker.engine.types import MAX_IN_FLIGHT
from stoker.jobs.build_context import CompiledJob, ComposedJob, JobCompiler
from stoker.jobs.rerun import Continuation, go_on, go_on_after
from stoker.jobs.rerun_spec import reorder, trials_of_job
from stoker.jobs.trials import is_sweep

MOST_UNASKED = 1_000
MOST_TRIALS = 100_000


def running(unnamed: str) -> tuple[Option, ...]:
    """Return what may be said of how work is to run; `unnamed` is what its job is called unless told."""
    return (
        Option("--dry-run", help="show what would run, why, and what it may cost; run nothing"),
        Option(
            "--rerun",
            value="STAGE",
            help="run this stage although its result is known; several with commas or by giving it again",
            is_many=True,
        ),
        Option("--keep-going", help="go on with what does not depend on a stage that failed; a sweep does so anyway"),
        Option("--max-failures", value="N", read=whole(1), help="with --keep-going, which it implies: stop after N"),
        Option("--solo", help="each in a process of its own, also what could be trained together over one base"),
        Option(
            "-j", "--jobs", value="N", read=whole(1), help=f"stages at once, {MAX_IN_FLIGHT} unless told; programs 1"
        ),
        Option("--name", value="NAME", help=f"what the job is called; {unnamed}, unless told"),
        Option("--out", value="DIR", help="lay results out in DIR/NAME; stoker-out unless told"),
        Option("--no-out", help="keep results in the store only"),
        Option("--timeout", value="TIME", read=duration, help="stop if the whole takes longer: 90s, 15m, 2h"),
        Option(
            "--contain",
            value="HOW",
            help="keep memory within bounds by exactly this: systemd, cgroup2, cgroup1, address_space, watchdog, bare",
        ),
        Option(
            "--wandb",
            value="PROJECT",
            help="pass metrics on to wandb too, offline unless WANDB_MODE says so; the program's Python has to have it",
        ),
        Option("-y", "--yes", help=f"do not ask, also for more than {MOST_UNASKED:,} trials"),
    )


GRAMMAR = Grammar(
    "run",
    about=(
        "Run a recipe, a plan or any program here, now, and watch it. A comma or a range in a value makes a sweep, and "
        "{name} in a program's words stands for a value. Stages whose results are known are not run again; what was "
        "interrupted continues with the same command. Results are also laid out as plain files in stoker-out/NAME."
    ),
    positionals=(
        Positional(
            "RECIPE|PLAN.json",
            key="target",
            help="what to run: `stoker recipes` lists the recipes; nothing if a program follows --",
            is_required=False,
        ),
        Positional(
            "key=value",
            key="values",
            help="settings: a.b=v changes, +a=v adds, ++a=v either, '~a' deletes, group=option; lr=1e-3,1e-4 or "
            "lr=log:1e-4:1e-1:4, n=range:1:10:2, x=lin:0:1:5 sweeps. What a program gets: gpus=2, vram=6G, shares=true "
            "(a card beside others), cpus=4, memory=8G, python=PATH, inputs=DIR, outputs=DIR",
            is_many=True,
            is_required=False,
        ),
    ),
    options=(
        Option(
            "--config", value="FILE", help="a YAML or TOML file to start from; several: later ones win", is_many=True
        ),
        Option("--failed", value="JOB", help="run again what failed, or was never reached, in an earlier job"),
        Option(
            "--ranks",
            value="N|auto",
            read=ranks,
            help="run a program, or a recipe that has ranks=, as N processes that start and end together; auto: one "
            "for each GPU, or 1. See `stoker help gang run`",
        ),
        *running("the recipe's last word, or the script"),
    ),
    examples=(
        "stoker run tabular/gbt data=iris lr=0.05",
        "stoker run tabular/gbt data=iris model.depth=3,5,7 lr=log:1e-2:1:3",
        "stoker run lr=1e-2,1e-3 -- python train.py --lr {lr}",
        "stoker run outputs=runs/ memory=8G -- ./train.sh",
        "stoker run vram=6G shares=true -- python train.py",
        "stoker run --ranks 8 -- python train.py",
        "stoker run --failed last",
        "stoker run tabular/compare --json | tail -n 1",
    ),
    takes_program=True,
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run, or show what a run would do."""
    rerun = words_of(given["rerun"])
    desk, bringing = call.desk(), CommandInputFetcher(call, is_dry=given["dry_run"])
    if given["failed"] is not None:
        order, going_on = _order_failed(call, desk, bringing, given)
        if order is None:
            return 0
        nodes = nodes_to_rerun(order.plan, rerun)
    else:
        order = _order(call, desk, bringing, given)
        if order is None:
            return 0
        nodes = nodes_to_rerun(order.plan, rerun)
        going_on = go_on(order, call.parts.cache, call.sweeps_folder(), afresh=bool(nodes))
    _refuse_shared_outputs(order, given)
    return carry_out(call, order, going_on, given, nodes, bringing)


def carry_out(
    call: CommandContext,
    order: CompiledJob,
    going_on: Continuation,
    given: dict[str, Any],
    nodes: frozenset[str],
    bringing: CommandInputFetcher,
) -> int:
    """Run an order, or show what that would do; `nodes` run in any case."""
    for note in (*order.notes, going_on.note):
        if note:
            call.out.note(f"note: {note}")
    if given["dry_run"]:
        from stoker.cli.dry_run import show_forecast

        return show_forecast(call, order, going_on.kept, nodes, is_solo=given["solo"])
    bringing.verify(order)
    return run_order(call, order, going_on, given, nodes)


def words_of(given: list[str]) -> list[str]:
    """Return the words of an option that takes several with commas, or by being given again."""
    return [word for words in given for word in words.split(",") if word]


def _order(
    call: CommandContext, desk: JobCompiler, bringing: CommandInputFetcher, given: dict[str, Any]
) -> CompiledJob | None:
    """Order what is wanted; nothing if a dry run can only say what would be fetched for it."""
    if given["ranks"] == AUTO:
        given["ranks"] = max(1, len(call.parts.devices))
    wanted = read_wanted(given)
    if wanted.target.endswith(".json") and not wanted.program:
        return desk.order_plan_file(wanted)
    if wanted.target.endswith(SUFFIXES) and not wanted.program:
        raise UnknownRecipe(
            f"{wanted.target} is no recipe and no plan",
            hint=f"settings of a recipe or a program: --config {wanted.target}; a manifest's jobs go to the fleet: "
            f"stoker submit {wanted.target}; an adapters file: stoker adapters run {wanted.target}",
        )
    draft = desk.draft(wanted)
    _check_size(call, draft, given)
    return bringing.order(lambda: desk.order_draft(draft))


def _refuse_shared_outputs(order: CompiledJob, given: dict[str, Any]) -> None:
    """Refuse to let programs that run at once write to one place."""
    if order.program is None or not is_sweep(order.trials) or (given["jobs"] or 1) < 2:
        return
    outputs = dict.fromkeys(name for trial in order.trials for name in trial.args.get("outputs", ()))
    if outputs:
        raise Usage(
            f"--jobs {given['jobs']}: programs that run at once would all write to {', '.join(outputs)}",
            hint="let each write to $STOKER_OUT, which is its own, or run one at a time",
        )


def _check_size(call: CommandContext, draft: ComposedJob, given: dict[str, Any]) -> None:
    """Ask before very many trials are made; refuse what nobody can mean."""
    count = draft.size
    if count > MOST_TRIALS:
        raise TooManyTrials(
            f"this sweep has {count:,} trials; {MOST_TRIALS:,} are the most that one job takes",
            hint="fewer values, or `sample` in a sweep file",
            trials=count,
        )
    if count <= MOST_UNASKED or given["yes"]:
        return
    if given["dry_run"]:
        return
    if not call.out.asks(f"{count:,} trials. Run them?"):
        raise TooManyTrials(
            f"this sweep has {count:,} trials, and nobody confirmed them", hint="--dry-run lists them, --yes confirms"
        )


def _order_failed(
    call: CommandContext, desk: JobCompiler, bringing: CommandInputFetcher, given: dict[str, Any]
) -> tuple[CompiledJob | None, Continuation]:
    """Order an earlier job again, keeping all of it that succeeded; nothing if all of it did."""
    if given["target"] or given["values"] or given["program"] is not None or given["config"]:
        raise Usage("--failed takes everything from the earlier job", hint=f"stoker run --failed {given['failed']}")
    folder = call.find_job(given["failed"])
    if folder.state()[0] is JobState.RUNNING:
        name = folder.spec().name
        raise Refused(f"job {name} is still running", hint=f"stoker logs {name} -f, or stoker cancel {name}")
    trials, end = trials_of_job(folder), folder.ended()
    has_trouble = end is None or end.error is not None
    if not is_sweep(trials):
        if has_trouble:
            return bringing.order(lambda: reorder(desk, folder, name=given["name"] or "")), Continuation()
    else:
        order = bringing.order(lambda: reorder(desk, folder, name=given["name"] or "", at_once=given["jobs"] or 1))
        if order is None:
            return None, Continuation()
        going_on, left = go_on_after(
            order, call.parts.cache, call.sweeps_folder(), trials=trials, story=job_story(folder)
        )
        if left or has_trouble:
            return order, going_on
    call.out.line(f"nothing of {folder.spec().name} failed: nothing to run")
    return None, Continuation()


def nodes_to_rerun(plan: Plan, rerun: list[str]) -> frozenset[str]:
    """Give the nodes that the words of --rerun mean: by id, by stage, or, in a sweep, the same node of every trial."""
    nodes: set[str] = set()
    faults = []
    for name in rerun:
        meant = {node.id for node in plan.nodes if name in (node.id, node.stage.name, _tail(node.id))}
        if meant:
            nodes |= meant
        else:
            # An instance of a fan-out is not a node yet.
            base = name.partition("[")[0]
            if "[" in name and any(node.id == base for node in plan.nodes):
                nodes.add(name)
            else:
                faults.append(name)
    if faults:
        known = [name for node in plan.nodes for name in (node.id, node.stage.name, _tail(node.id))]
        listed = ", ".join(dict.fromkeys(node.id for node in plan.nodes[:12]))
        raise Usage(
            f"--rerun: {plan.name} has no stage {' or '.join(map(repr, faults))}",
            hint=did_you_mean(faults[0], known) or f"its stages: {listed}",
        )
    return frozenset(nodes)


def _tail(node_id: str) -> str:
    number, dot, rest = node_id.partition(".")
    return rest if dot and number.isdigit() else node_id
