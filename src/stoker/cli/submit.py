"""`stoker submit`: a manifest, a recipe or any program, on the fleet. Shows what would change first, and asks."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, duration, whole
from stoker.cli.run_request import read_wanted
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import TooManyTrials, Usage
from stoker.core.frozen import changed
from stoker.core.machine import MOST_EXPECTED_S, MOST_PRIORITY

if TYPE_CHECKING:
    from stoker.jobs.build_context import JobCompiler
    from stoker.jobs.pack.code_tree import PreparedSubmission, SubmittedCodeOptions
    from stoker.protocol.client import FleetClient
    from stoker.store.trees import Heed

_MOST_ATTEMPTS = 100


def _priority(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = MOST_PRIORITY + 1
    if abs(number) > MOST_PRIORITY:
        message = f"{text!r} is not a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"
        raise ValueError(message)
    return number


def _some_time(text: str) -> float:
    seconds = duration(text)
    if not seconds > 0:
        message = f"{text!r} leaves no time at all"
        raise ValueError(message)
    return seconds


def _expected(text: str) -> float:
    seconds = _some_time(text)
    if seconds > MOST_EXPECTED_S:
        message = f"{text!r} is more than {MOST_EXPECTED_S / 86400:.0f} days"
        raise ValueError(message)
    return seconds


def _attempts(text: str) -> int:
    count = whole(1)(text)
    if count > _MOST_ATTEMPTS:
        message = f"{count:,} are more than {_MOST_ATTEMPTS}"
        raise ValueError(message)
    return count


GRAMMAR = Grammar(
    "submit",
    about=(
        "Hand jobs to the fleet: every job of a manifest, or the same words as `stoker run`, each point of a sweep a "
        "job of its own. Everything is checked here first; then the coordinator says what would change, and on a "
        "terminal you are asked. What is known already stays as it is: submitting twice changes nothing. A program's "
        "code goes along: what git tracks of its project, uncommitted changes included, else all files below the "
        "folder; .stokerignore leaves files out. Once they are submitted, this computer may be closed."
    ),
    positionals=(
        Positional(
            "MANIFEST|RECIPE",
            key="target",
            help="a manifest (.toml, .yaml) or a recipe; nothing if a program follows --",
            is_required=False,
        ),
        Positional(
            "key=value",
            key="values",
            help="settings, as in `stoker help run`; a comma or a range makes a sweep. What a program asks of its "
            "machine: gpus=2, vram=6G, shares=true, cpus=4, memory=8G",
            is_many=True,
            is_required=False,
        ),
    ),
    options=(
        Option("--dry-run", help="show what would be submitted and what that would change; submit nothing"),
        Option("--watch", help="follow the jobs to their ends; Ctrl-C leaves them running"),
        Option("--rerun", help="run completed jobs again whose code is another now"),
        Option("--keep", help="keep their results, without asking"),
        Option("-y", "--yes", help="do not ask"),
        Option(
            "--at",
            value="URL",
            help="the coordinator; unless told STOKER_COORDINATOR, the one on this machine, or the one that was joined",
        ),
        Option(
            "--config", value="FILE", help="a YAML or TOML file to start from; several: later ones win", is_many=True
        ),
        Option(
            "--name", value="NAME", help="what the job is called; the recipe's last word, or the script, unless told"
        ),
        Option(
            "--ranks",
            value="N",
            read=whole(1),
            help="run a program, or a recipe that has ranks=, as N processes that start and end together",
        ),
        Option("--priority", value="N", read=_priority, help="before others if it is higher; strictly"),
        Option("--after", value="NAME", help="a job that has to complete first; may be given again", is_many=True),
        Option("--host", value="NAME", help="only this machine; may be given again", is_many=True),
        Option("--secret", value="NAME", help="a variable of the worker's own, or of its secrets file", is_many=True),
        Option(
            "--env",
            value="FILE",
            help="a program's Python environment, made anew on each machine: uv.lock, requirements.txt or "
            "pyproject.toml; PLATFORM=FILE for machines of one sort, such as linux-aarch64; may be given again",
            is_many=True,
        ),
        Option(
            "--include",
            value="GLOB",
            help="untracked files that belong to a program's code, such as configs/local.yaml; may be given again",
            is_many=True,
        ),
        Option("--in-place", help="run programs in this folder itself, on machines that have it; send no code"),
        Option(
            "--notify",
            value="URL|CMD",
            help="an address that is told, signed, as these jobs end; or a command that runs here once all have",
        ),
        Option("--attempts", value="N", read=_attempts, help="how often it may fail by itself, 1 unless told"),
        Option("--timeout", value="TIME", read=_some_time, help="stop an attempt that runs longer: 90s, 15m, 8h"),
        Option(
            "--expected",
            value="TIME",
            read=_expected,
            help="how long a job is expected to take on a device of speed 1 (an RTX 4090), or on the only --host; used "
            "until jobs like it were measured",
        ),
    ),
    examples=(
        "stoker submit manifest.toml",
        "stoker submit manifest.toml --dry-run",
        "stoker submit tabular/gbt lr=0.1,0.2 --name trees --watch",
        "stoker submit lr=1e-3,1e-4 -- python train.py --lr {lr}",
        "stoker submit vram=6G memory=8G --priority 5 -- python train.py",
        "stoker submit --env uv.lock python=3.11 -- python train.py",
        "stoker submit --include configs/local.yaml -- python train.py",
        "stoker submit --notify 'mail -s done me' -- python train.py",
    ),
    takes_program=True,
)
_TYPED_ONLY = (
    "config",
    "name",
    "ranks",
    "priority",
    "after",
    "host",
    "secret",
    "env",
    "attempts",
    "timeout",
    "expected",
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Submit, or show what submitting would do."""
    if given["rerun"] and given["keep"]:
        raise Usage("--rerun and --keep: run them again, or keep them?", hint="one of them")
    if given["in_place"] and given["include"]:
        raise Usage("--in-place sends nothing, and --include says what to send", hint="one of them")
    if given["notify"] is not None:
        from stoker.cli.submission import check_target

        check_target(given["notify"])
    from stoker.cli.submission import show_alone, submit
    from stoker.protocol.discovery import find_coordinator

    settings = call.parts.settings
    at = given["at"] or ""
    found = find_coordinator(at, environment=settings.environment, state=settings.state)
    if found is None:
        # What is wrong with the jobs themselves is told all the same.
        orders = _orders(call, given, None)
        if not given["dry_run"]:
            from stoker.protocol.discovery import no_coordinator_known

            raise no_coordinator_known(settings.state)
        return show_alone(call, orders)

    client = call.lookup.client(at)
    return submit(call, given, _orders(call, given, client), client)


def _env(words: list[str]) -> dict[str, str]:
    from stoker.cli.submit_environments import read_env

    try:
        return read_env(words)
    except ValueError as error:
        raise Usage(str(error), hint="--env FILE, or --env PLATFORM=FILE for each sort of machine") from None


def _orders(call: CommandContext, given: dict[str, Any], client: FleetClient | None) -> PreparedSubmission:
    target = given["target"]
    is_manifest = target.endswith(SUFFIXES) and given["program"] is None
    orders = _of_manifest(call, given, client) if is_manifest else _typed(call, given)
    call.parts.code.save()
    # There may be ten thousand of them, and none is garbage before the command ends.
    gc.freeze()
    for note in orders.notes:
        call.out.note(f"note: {note}")
    return orders


def _desk(call: CommandContext) -> JobCompiler:
    """Return what takes orders, and shows how far it is with large data."""
    from stoker.cli.screens import under_way

    @contextmanager
    def reading(what: str, size_bytes: int) -> Iterator[Heed]:
        with under_way(call, what, size_bytes) as amount:
            yield amount.heed

    desk = call.desk()
    return changed(desk, data=changed(desk.data, reading=reading))


def _of_manifest(call: CommandContext, given: dict[str, Any], client: FleetClient | None) -> PreparedSubmission:
    if given["values"]:
        raise Usage(f"a manifest takes no arguments, got {' '.join(given['values'])}", hint="edit the file")
    extra = [f"--{name}" for name in _TYPED_ONLY if given[name]]
    if extra:
        raise Usage(f"{', '.join(extra)}: the manifest says that for each job itself", hint="edit the file")
    from stoker.cli.submission import KnownJobs
    from stoker.config.manifest_file import KnownNames
    from stoker.jobs.manifest_jobs import known_recipes, read_orders

    desk = _desk(call)
    known = KnownNames(
        recipes=known_recipes(desk.catalogue),
        jobs=KnownJobs(client) if client is not None else None,
    )
    return read_orders(
        call.path(given["target"]),
        desk=desk,
        code=call.parts.code,
        known=known,
        name=given["target"],
        wishes=_code_wishes(call, given),
    )


def _typed(call: CommandContext, given: dict[str, Any]) -> PreparedSubmission:
    from stoker.jobs.builder import JobQueueOptions, orders_of_draft
    from stoker.protocol.job_messages import MOST_JOBS

    wanted = read_wanted(given, verb="submit")
    if wanted.target.endswith(".json"):
        raise Usage(f"{wanted.target} is a plan, and plans run here", hint=f"stoker run {wanted.target}")
    # What this machine has is nothing to a job that runs elsewhere.
    desk = changed(_desk(call), count_gpus=lambda: 0)
    draft = desk.draft(wanted)
    if draft.size > MOST_JOBS:
        raise TooManyTrials(
            f"this sweep has {draft.size:,} points; {MOST_JOBS:,} jobs are the most that are submitted at once",
            hint="fewer values, or `sample` in a sweep file",
            trials=draft.size,
        )
    wishes = JobQueueOptions(
        priority=given["priority"] or 0,
        after=tuple(given["after"]),
        secrets=tuple(given["secret"]),
        attempts=given["attempts"] or 1,
        timeout_s=given["timeout"],
        expected_s=given["expected"],
        allowed_hosts=tuple(given["host"]),
        env=_env(given["env"]),
    )
    named = ("--name", given["name"]) if given["name"] else ()
    words = [*named, wanted.target, *wanted.overrides, *(["--", *wanted.program] if wanted.program else [])]
    source = f"stoker submit {shlex.join([word for word in words if word])}"
    return orders_of_draft(
        draft,
        desk=desk,
        code=call.parts.code,
        wishes=wishes,
        source=source,
        code_wishes=_code_wishes(call, given),
    )


def _code_wishes(call: CommandContext, given: dict[str, Any]) -> SubmittedCodeOptions:
    from stoker.jobs.pack.code_tree import SubmittedCodeOptions

    return SubmittedCodeOptions(
        is_in_place=given["in_place"], include=tuple(given["include"]), ours=(call.parts.settings.home,)
    )
