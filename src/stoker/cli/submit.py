"""`stoker submit`: submit a manifest, a recipe or any program to the fleet, after a preview and a confirmation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, duration, whole
from stoker.cli.run import DATA, METRICS, UNNAMED, job_options, program_settings, read_request
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import (
    Cancelled,
    CodeNotAccepted,
    Conflict,
    Forbidden,
    InvalidConfig,
    InvalidManifest,
    InvalidProgram,
    NetworkFailed,
    NoCoordinator,
    TooLarge,
    UnknownRecipe,
    Usage,
    WorkFailed,
)
from stoker.core.frozen import changed
from stoker.core.machine import MOST_EXPECTED_S, MOST_PRIORITY, is_platform
from stoker.jobs.request import JobRequest

if TYPE_CHECKING:
    from stoker.jobs.builder import JobBuilder
    from stoker.jobs.pack.code_tree import PreparedSubmission
    from stoker.protocol.client import FleetClient
    from stoker.store.trees import Heed

_MOST_ATTEMPTS = 100
_COMES_UP_S = 5.0
"""Time for `stoker serve` to begin that was started together with this command."""


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
        message = f"{text!r} is not a duration above 0"
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
        message = f"{count:,} is above the maximum of {_MOST_ATTEMPTS}"
        raise ValueError(message)
    return count


GRAMMAR = Grammar(
    "submit",
    about=(
        "Submit jobs to the fleet: every job of a manifest, or the same words as for `stoker run`, each point of a "
        "sweep as one job. All jobs are checked first; then the changes are shown, and on a terminal you are asked to "
        "confirm. Submitting is idempotent: the same jobs again change nothing. A program's code is sent: what git "
        "tracks of its project, uncommitted changes included, else all files below the folder, except those in "
        ".stokerignore. Submitted jobs do not need this computer any more."
    ),
    positionals=(
        Positional(
            "MANIFEST|RECIPE",
            key="target",
            help="a manifest (.toml, .yaml) or a recipe; omit it if a program follows --",
            is_required=False,
            completes="recipe file",
        ),
        Positional(
            "key=value",
            key="values",
            help="settings, as in `stoker help run`; a comma or a range makes a sweep",
            is_many=True,
            is_required=False,
            completes="setting",
        ),
    ),
    options=(
        Option("--dry-run", help="show the preview; submit nothing"),
        Option("--watch", help="follow the jobs until they end; Ctrl-C leaves them running"),
        Option(
            "--again",
            value="NAME",
            help="submit this fleet job again with other values: key=value, other words after --; code, data and "
            "environment are those that it was submitted with",
            completes="job",
        ),
        Option("--rerun", help="run completed jobs again whose code has changed"),
        Option("--keep", help="keep results of completed jobs whose code has changed, without asking"),
        Option("-y", "--yes", help="do not ask for confirmation"),
        Option(
            "--at",
            value="URL",
            help="coordinator (default: STOKER_COORDINATOR, the one on this machine, or the one that was joined)",
        ),
        Option(
            "--config", value="FILE", help="YAML or TOML file with settings; repeat it: later ones win", is_many=True
        ),
        *job_options(UNNAMED),
        METRICS,
        DATA,
        Option(
            "--ranks",
            value="N",
            read=whole(1),
            help="run a program, or a recipe with ranks=, as a gang of N processes",
        ),
        Option(
            "--priority",
            value="N",
            read=_priority,
            sets="priority",
            help="queue priority; higher starts first (default: 0)",
        ),
        Option(
            "--after",
            value="NAME",
            sets="after",
            help="start after this job has completed; may be repeated",
            is_many=True,
            completes="job",
        ),
        Option(
            "--host",
            value="NAME",
            sets="allowed_hosts",
            help="run only on this machine; may be repeated",
            is_many=True,
            completes="machine",
        ),
        Option(
            "--secret",
            value="NAME",
            sets="secrets",
            help="pass this variable of the worker's environment or secrets file; may be repeated",
            is_many=True,
        ),
        Option(
            "--env",
            value="FILE",
            help="a program's Python environment, built on each machine from uv.lock, requirements.txt or "
            "pyproject.toml; PLATFORM=FILE for one platform, such as linux-aarch64; may be repeated",
            is_many=True,
        ),
        Option(
            "--include",
            value="GLOB",
            help="untracked files that belong to a program's code, such as configs/local.yaml; may be repeated",
            is_many=True,
        ),
        Option("--in-place", help="run programs in this folder, on machines that have it; send no code"),
        Option(
            "--notify",
            value="URL|CMD",
            help="webhook URL that gets a signed message as each job ends; or a command that runs here after the last",
        ),
        Option(
            "--attempts",
            value="N",
            read=_attempts,
            sets="attempts",
            help="maximum attempts if the program fails (default: 1)",
        ),
        Option(
            "--timeout",
            value="TIME",
            sets="timeout_s",
            read=_some_time,
            help="time limit of an attempt, such as 90s, 15m, 8h (default: none)",
        ),
        Option(
            "--expected",
            value="TIME",
            sets="expected_s",
            read=_expected,
            help="expected run time on a device of speed 1 (an RTX 4090), or on the only --host; used until similar "
            "jobs were measured",
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
        "stoker submit --data data/corpus=../corpus -- python train.py",
        "stoker submit --notify 'mail -s done me' -- python train.py",
        "stoker submit --again resnet/3 lr=0.01 --name resnet-slow",
    ),
    takes_program=True,
    settings=program_settings,
    errors=(
        WorkFailed,
        Usage,
        NetworkFailed,
        InvalidConfig,
        InvalidManifest,
        UnknownRecipe,
        InvalidProgram,
        Conflict,
        Forbidden,
        NoCoordinator,
        TooLarge,
        CodeNotAccepted,
        Cancelled,
    ),
)
_OF_ONE_JOB = frozenset({"config", "name", "ranks", "env", "metrics", "data"})
"""Options that a manifest sets for each job, beside those that set a field."""


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Submit, or show the preview."""
    if given["again"]:
        from stoker.cli.again import submit_again

        return submit_again(call, given, GRAMMAR.options)
    if given["rerun"] and given["keep"]:
        raise Usage("--rerun and --keep exclude each other", hint="give one of them")
    if given["in_place"] and given["include"]:
        raise Usage("--in-place sends no code, so --include has no effect", hint="give one of them")
    if given["notify"] is not None:
        from stoker.cli.submission import check_target

        check_target(given["notify"])
    from stoker.cli.submission import show_alone, submit

    found = call.lookup.coordinator(given["at"])
    if found is None:
        # Faults of the jobs themselves come first.
        prepared = _prepare(call, given, None)
        if given["dry_run"]:
            _print_notes(call, prepared)
            return show_alone(call, prepared)
        found = call.lookup.wait_for_coordinator(limit_s=_COMES_UP_S)
    client = call.lookup.client_of(found)
    prepared = _prepare(call, given, client)
    _print_notes(call, prepared)
    return submit(call, given, prepared, client)


def _print_notes(call: CommandContext, prepared: PreparedSubmission) -> None:
    for note in prepared.notes:
        call.out.note(f"note: {note}")


def read_env(words: list[str]) -> dict[str, str]:
    """Parse `--env FILE` and `--env PLATFORM=FILE` as a manifest's table."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, file = word.partition("=")
        has_platform = equals and (is_platform(name) or name == "default")
        platform = name if has_platform and name != "default" else ""
        if platform in found:
            raise Usage(
                f"--env {word}: {found[platform]} is already set for this platform",
                hint="--env FILE, or --env PLATFORM=FILE for each platform",
            )
        found[platform] = file if has_platform else word
    return found


def _prepare(call: CommandContext, given: dict[str, Any], client: FleetClient | None) -> PreparedSubmission:
    from stoker.api.submission import KnownJobs
    from stoker.jobs.submission import prepare

    request = _request(given)
    known_jobs = KnownJobs(client) if client is not None else None
    prepared = prepare(request, builder=_builder(call), code=call.parts.code, known_jobs=known_jobs)
    call.parts.code.save()
    # There may be ten thousand jobs, and none is garbage before the command ends.
    gc.freeze()
    return prepared


def _builder(call: CommandContext) -> JobBuilder:
    """Return the job builder; it shows its progress with data that takes long."""
    from stoker.cli.screens import under_way

    @contextmanager
    def reading(what: str, size_bytes: int | None) -> Iterator[Heed]:
        with under_way(call, what, size_bytes) as amount:
            yield amount.heed

    builder = call.builder()
    return changed(builder, data=changed(builder.data, reading=reading))


def _request(given: dict[str, Any]) -> JobRequest:
    code = {"in_place": given["in_place"], "include": tuple(given["include"])}
    if given["target"].endswith(SUFFIXES) and given["program"] is None:
        if given["values"]:
            raise Usage(f"a manifest takes no arguments, got {' '.join(given['values'])}", hint="edit the file")
        typed = [option for option in GRAMMAR.options if option.sets or option.key in _OF_ONE_JOB]
        extra = [option.names[-1] for option in typed if option.is_in(given)]
        if extra:
            raise Usage(f"{', '.join(extra)}: set in the manifest, for each job", hint="edit the file")
        return JobRequest(target=given["target"], is_manifest=True, **code)
    request = read_request(given, GRAMMAR)
    if request.is_plan_file:
        raise Usage(f"{request.target} is a plan; plans run on this machine", hint=f"stoker run {request.target}")
    return changed(request, env=read_env(given["env"]), **code)
