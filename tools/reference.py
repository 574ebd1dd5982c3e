"""Write the reference pages from the code, or check that they are what the code says.

python tools/reference.py            writes docs/reference, and the words of shell completion
python tools/reference.py --check    changes nothing; says which page is out of date and exits with 1
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.cli.commands import ALIASES, COMMANDS, EVERYWHERE, top_help
from stoker.cli.completion import table
from stoker.cli.grammar import Grammar
from stoker.config.cluster_file import GPU, NODE, USER
from stoker.config.manifest_file import HOST, JOB, HostEntry, JobEntry
from stoker.core import errors
from stoker.core import errors as _fleet_errors  # noqa: F401 - they are leaves of the tree of errors
from stoker.core import errors as _gang_errors  # noqa: F401 - the same
from stoker.core.errors import MEANINGS
from stoker.core.events import LOSSY, FleetKinds, Kinds
from stoker.core.frozen import defaults_of, fields_of
from stoker.core.job import JobSpec
from stoker.core.machine import Gpu, Node, UserPolicy
from stoker.engine.catalogue import Catalogue, CookbookSource
from stoker.jobs.program import FOUND, RECIPE
from stoker.views.text_tables import argument_rows, example_line

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MADE = "<!-- Made by tools/reference.py: change the code and run `make docs`. -->"

SHIPPED = (
    CookbookSource(name="command", value="stoker.cookbooks.command:COOKBOOK"),
    CookbookSource(name="tabular", value="stoker.cookbooks.tabular:COOKBOOK"),
    CookbookSource(name="sequence", value="stoker.cookbooks.sequence:COOKBOOK"),
    CookbookSource(name="language", value="stoker.cookbooks.language:COOKBOOK"),
    CookbookSource(name="crossval", value="stoker.crossval.cookbook:COOKBOOK"),
)

PROGRAM_LINE = "stoker run lr=1e-2,1e-3 -- python train.py --lr {lr}"

EVENTS = {
    Kinds.RUN_BEGIN: ("a job begins", "job, attempt, job_id, recipe, plan, stages"),
    Kinds.RUN_END: ("a job ended", "state, ended_s, hits, ran, failed, elapsed_s, exit_code, error, out, trials"),
    Kinds.STAGE_BEGIN: ("a stage starts to run", "node, stage, key, attempt, why, changes"),
    Kinds.STAGE_END: (
        "a stage ran and its result is kept",
        "node, stage, key, digest, seconds, size_bytes, peak_rss_bytes, metrics; on GPUs also devices, peak_gpu_bytes",
    ),
    Kinds.STAGE_SKIPPED: ("a stage's result was known", "node, stage, key, digest"),
    Kinds.STAGE_FAILED: ("a stage failed for good", "node, stage, attempt, cause, message, hint, seconds"),
    Kinds.STAGE_BLOCKED: ("a stage waits for room on this machine", "node, stage, short_of"),
    Kinds.STAGE_STEP: ("a stage reports progress; may be dropped under pressure", "node, step, of, metrics"),
    Kinds.STEP_GAP: ("reports of progress were dropped", "n"),
    Kinds.STAGE_LOG: ("a log line of a stage that runs in the engine itself", "node, text"),
    Kinds.STAGE_TOLD: ("a message of a running stage for its user; also in its log", "node, text; at_once"),
    Kinds.STAGE_RETRYING: ("a stage failed and will be tried again", "node, attempt, cause, message, delay_s"),
    Kinds.STAGE_CANCELLED: ("a stage was stopped, or never started, because the job stops", "node, stage"),
    Kinds.STAGE_PRUNED: ("a stage is left out because something it needs failed", "node, stage, because"),
    Kinds.STAGE_WAITING: (
        "another process works on the same thing, or holds the GPUs that it needs",
        "node, why; key or stage, waits_for, place",
    ),
    Kinds.STAGE_REWIND: (
        "a stage runs again because its result is deleted and another stage needs it",
        "node, wanted_by",
    ),
    Kinds.STAGE_EXPANDED: ("a fan-out's list is known", "node, count"),
    Kinds.TRIAL_END: (
        "a trial of a sweep ended, and its result lies in its folder",
        "trial, label, state, is_kept, seconds, digest, metrics, peak_bytes, peak_gpu_bytes, cause, message, hint, out",
    ),
    Kinds.CACHE_CORRUPT: ("what was kept is damaged; it was set aside and is made again", "node, key, damage"),
    Kinds.CACHE_DIFFERS: ("a stage gave another result than before", "node, key, before, ours, kept, expected"),
    Kinds.WARNING: (
        "something worth knowing",
        "message; `edited` if a program was edited while its sweep ran: trial → file → digest",
    ),
    Kinds.DOWNLOAD_START: ("bytes of a file begin to come", "phase, file, url, resume, start, total, sha256"),
    Kinds.DOWNLOAD_PROGRESS: (
        "how far a file is, at most four times a second",
        "phase, file, downloaded, total, rate_bytes_per_s, eta_s, hashed",
    ),
    Kinds.DOWNLOAD_RETRY: ("a request is made again", "phase, file, wait_secs, msg, reason, attempt"),
    Kinds.DOWNLOAD_WAITING: ("another process fetches the same file", "phase, file, path, msg"),
    Kinds.DOWNLOAD_DONE: (
        "a file is there, checked and durable, and so is its receipt",
        "phase, file, bytes, ms, sha256, bytes_from_network, bytes_resumed, path, status, commit",
    ),
    Kinds.DOWNLOAD_FAILED: ("a download failed", "phase, file, error, exit_code, message, hint, data"),
    Kinds.DOWNLOAD_FROZEN: ("a lock list of a repository is written", "phase, file, path, files, bytes, commit"),
}

FLEET_EVENTS = {
    FleetKinds.JOB_SUBMITTED: "the job was submitted",
    FleetKinds.JOB_READY: "the jobs that it depends on have completed",
    FleetKinds.JOB_GRANTED: "a worker holds a lease on it, under a new epoch",
    FleetKinds.JOB_STARTED: "its process runs",
    FleetKinds.JOB_CHECKPOINT: "a checkpoint is stored at the coordinator; the next attempt resumes from it",
    FleetKinds.JOB_FINISHED: "completed: its result is stored at the coordinator",
    FleetKinds.JOB_FAILED: "failed, and its budget of attempts for that cause is spent",
    FleetKinds.JOB_RETRYING: "an attempt failed, and another may follow",
    FleetKinds.JOB_RELEASED: "its worker gave it back; the attempt is not charged",
    FleetKinds.JOB_DECLINED: "its worker declined to start it after a check; not charged",
    FleetKinds.JOB_EXPIRED: "its lease expired without a heartbeat, or its worker came back without it",
    FleetKinds.JOB_CANCELLING: "a cancel was requested; its worker has not confirmed that it stopped",
    FleetKinds.JOB_CANCELLED: "cancelled; nothing of it runs any more, or its lease has ended",
    FleetKinds.JOB_REQUEUED: "it had ended and is to run again, under a higher epoch",
    FleetKinds.JOB_CHANGED: "its priority, requirements or name are others now; its state is not",
    FleetKinds.EXEC_BEGUN: "an operator runs a command inside it: who, and its first word",
    FleetKinds.EXEC_ENDED: "that command has ended",
    FleetKinds.MACHINE_JOINED: "a worker registered",
    FleetKinds.MACHINE_CHANGED: "drained, cordoned, paused, opened; or what it has is not what it had",
    FleetKinds.MACHINE_LEFT: "its worker unregistered",
    FleetKinds.MACHINE_LOST: "no heartbeat for longer than its lease and the grace period",
    FleetKinds.MACHINE_FORGOTTEN: "it was removed from the list",
    FleetKinds.POOL_CHANGED: "paused, resumed, watched by a launcher or released by it",
    FleetKinds.ALLOCATION_CHANGED: "an allocation moved to another state; with the backend's reason",
    FleetKinds.TICKET_STOLEN: "two workers used one ticket; both are refused from then on",
    FleetKinds.INVITED: "an invite for a machine or a person was created; without the code",
    FleetKinds.INVITE_WITHDRAWN: "an invite was withdrawn, or wrong codes ended it",
    FleetKinds.JOIN_REFUSED: "a join request without a valid proof was refused",
    FleetKinds.CERTIFICATE_ISSUED: "a machine got a certificate: it joined, or renewed it",
    FleetKinds.CERTIFICATE_REVOKED: "a machine's certificate was revoked",
    FleetKinds.TOKEN_MADE: "a token for a person or a program was created; without its text",
    FleetKinds.TOKEN_REVOKED: "a token was revoked, or another has taken its place",
    FleetKinds.SYMPTOM: "something is wrong with a machine or device; again after an hour",
    FleetKinds.SYMPTOM_OVER: "it is no longer so",
    FleetKinds.HOOK_MADE: "a webhook was added",
    FleetKinds.HOOK_CLOSED: "a webhook was closed: removed, its jobs have ended, or no delivery succeeded for a day",
    FleetKinds.COORDINATOR_STARTED: "a coordinator serves this database from now on",
    FleetKinds.POLICY_RELOADED: "the cluster file or the manifest was read again",
    FleetKinds.DATABASE_RESTORED: "the queue was restored from a backup, under a new generation",
}


def main() -> int:
    pages: dict[str, Callable[[], list[str]]] = {
        "cli.md": commands_page,
        "exit-codes.md": exit_codes_page,
        "events.md": events_page,
        "recipes.md": recipes_page,
        "files.md": files_page,
        "http-api.md": routes_page,
        "openapi.json": openapi_document,
        "stoker.1": man_page,
        "../../src/stoker/cli/completion_table.json": completion_table,
    }
    stale = []
    for name, make in pages.items():
        head = [MADE, ""] if name.endswith(".md") else []
        text = "\n".join([*head, *make()]).rstrip() + "\n"
        path = FOLDER / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before == text:
            continue
        stale.append(name)
        if "--check" in sys.argv[1:]:
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), text.splitlines(True), name, "the code")
            )
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if stale and "--check" in sys.argv[1:]:
        print(f"\nout of date: {', '.join(stale)}; `make docs` writes them again")
        return 1
    return 0


def commands_page() -> list[str]:
    lines = ["# Commands", "", "```", *top_help().rstrip().split("\n"), "```"]
    for command in COMMANDS:
        grammar: Grammar = getattr(import_module(command.module), command.grammar)
        if grammar.words != command.words:
            lines += ["", f"## stoker {command.words}", "", f"The same as `stoker {grammar.words}`."]
            continue
        lines += ["", f"## stoker {command.words}", "", "```", *grammar.help().rstrip().split("\n"), "```"]
    lines += ["", "## Words of earlier tools", "", "They keep working.", "", "| word | is |", "|---|---|"]
    lines += [f"| `stoker {' '.join(old)}` | `stoker {' '.join(new)}` |" for old, new in ALIASES]
    return lines


def completion_table() -> list[str]:
    """Return the table as JSON with a line for each argument and option."""
    commands = []
    for words, grammar in table().items():
        parts = [f"  {json.dumps(name)}: {_json_rows(value)}" for name, value in grammar.items()]
        commands.append(f" {json.dumps(words)}: {{\n{_NEXT.join(parts)}\n }}")
    return ["{", _NEXT.join(commands), "}"]


_NEXT = ",\n"


def _json_rows(value: object) -> str:
    if not isinstance(value, list | dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        rows = [f"   {json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}" for key, one in value.items()]
        return f"{{\n{_NEXT.join(rows)}\n  }}"
    return f"[\n{_NEXT.join(f'   {json.dumps(one, ensure_ascii=False)}' for one in value)}\n  ]"


def man_page() -> list[str]:
    """Return the manual page `stoker(1)`."""
    lines = [
        '.\\" Made by tools/reference.py: change the code and run `make docs`.',
        '.TH STOKER 1 "" "Stoker" "User Commands"',
        ".SH NAME",
        "stoker \\- run trainings on the machines that you own",
        ".SH SYNOPSIS",
        ".B stoker",
        "COMMAND [TARGET] [key=value ...] [options] [\\-\\- PROGRAM ...]",
        ".SH DESCRIPTION",
        "Stoker runs a recipe or any program on this machine (stoker run), or on the machines of a fleet (stoker",
        "submit). Results are kept: the same work is not done twice.",
        ".SH GLOBAL OPTIONS",
    ]
    for name, text in EVERYWHERE:
        lines += [".TP", f".B {_roff(name)}", _roff(text)]
    lines.append(".SH COMMANDS")
    for command in COMMANDS:
        grammar: Grammar = getattr(import_module(command.module), command.grammar)
        lines += [f".SS {_roff(grammar.usage().replace(grammar.words, command.words, 1))}", _roff(grammar.about)]
        rows = [(argument.label, argument.help) for argument in grammar.positionals]
        rows += [(option.label, option.help) for option in grammar.options]
        for label, text in rows if grammar.words == command.words else ():
            lines += [".TP", f".B {_roff(label)}", _roff(text)]
        if grammar.words == command.words:
            lines += [".PP", "Examples:", ".nf", *(f"    {_roff(one)}" for one in grammar.examples), ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning in MEANINGS.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    lines += [".SH ENVIRONMENT", ".TP", ".B STOKER_HOME"]
    lines += [_roff("folder of results, jobs and state (default: $XDG_DATA_HOME/stoker, else ~/.local/share/stoker)")]
    lines += [".TP", ".B STOKER_COORDINATOR", _roff("address of the coordinator")]
    return lines


def _roff(text: str) -> str:
    """Return a text in which troff reads no command."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def exit_codes_page() -> list[str]:
    named: dict[int, list[str]] = {}
    for kind in sorted(_leaves(errors.StokerError), key=lambda kind: kind.code):
        named.setdefault(kind.exit_code, []).append(f"`{kind.code}`")
    lines = ["# Exit codes", "", "What a shell sees, and the `error` that `--json` says.", ""]
    lines += ["| code | meaning | errors |", "|---|---|---|"]
    return [*lines, *(f"| {code} | {text} | {', '.join(named.get(code, []))} |" for code, text in MEANINGS.items())]


def events_page() -> list[str]:
    lines = [
        "# Events",
        "",
        "One JSON object per line, in a job's `status.jsonl`, from `stoker run --json` and from `stoker fetch --json`:",
        '`{"v":1,"ts":…,"seq":…,"source":…,"kind":…, …}`. `ts` is seconds since 1970, `seq` counts from 1, `source` is',
        'the attempt\'s id. Numbers that are not finite are tagged: `{"$float": "nan"}`, unknown ones null.',
        "Readers pass over kinds and fields that they do not know. Events of downloads also say their `phase`.",
        "",
        "| kind | when | fields |",
        "|---|---|---|",
    ]
    for kind in (value for name, value in vars(Kinds).items() if not name.startswith("_")):
        when, fields = EVENTS[kind]
        lossy = " (lossy)" if kind in LOSSY else ""
        lines.append(f"| `{kind}`{lossy} | {when} | {fields} |")
    lines += [
        "",
        "## Events of the fleet",
        "",
        "Every move of a job is one row, written with the move or not at all. `GET /v1/events` sends them as they",
        "happen (server-sent; resume with `Last-Event-ID` or `?after=`); `GET /v1/jobs/NAME/events`: one job's.",
        "",
        "| kind | when |",
        "|---|---|",
    ]
    kinds = [value for name, value in vars(FleetKinds).items() if not name.startswith("_")]
    return [*lines, *(f"| `{kind}` | {FLEET_EVENTS[kind]} |" for kind in kinds)]


def recipes_page() -> list[str]:
    lines = ["# Recipes", "", "What ships with Stoker. `stoker recipes` lists what is installed."]
    with tempfile.TemporaryDirectory() as folder:
        for entry in Catalogue(str(Path(folder, "index.json")), SHIPPED).entries():
            lines += ["", f"## {entry.name}", "", entry.summary, ""]
            is_program = entry.name == RECIPE
            example = PROGRAM_LINE if is_program else example_line(entry.name, entry.args, entry.prefill)
            lines += ["```", example, "```", ""]
            lines += ["| argument | type | default | limits | |", "|---|---|---|---|---|"]
            for row in argument_rows(entry.args):
                if is_program and row[0] in FOUND:
                    continue
                cells = (cell.replace("|", "\\|") for cell in row)
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def files_page() -> list[str]:
    lines = [
        "# Files",
        "",
        "Keys of [cluster files](../guides/cluster-file.md) and [manifests](../guides/manifest.md).",
    ]
    entry, spec = JobEntry(name=""), defaults_of(JobSpec)
    job = {field.name: getattr(entry, field.name, spec.get(field.sets)) for field in JOB.fields}
    tables = (
        ("Cluster file: `nodes`", NODE, fields_of(Node(name="", host=""))),
        ("Cluster file: `nodes[].gpus`", GPU, fields_of(Gpu(uuid="", type="", vram_mb=0))),
        ("Cluster file: `users.NAME`", USER, fields_of(UserPolicy())),
        ("Manifest: `jobs`", JOB, job),
        ("Manifest: `hosts`", HOST, fields_of(HostEntry(name=""))),
    )
    for title, form, defaults in tables:
        lines += ["", f"## {title}", "", "| key | type | default | |", "|---|---|---|---|"]
        for field in form.fields:
            default = "required" if field.is_required else _default(defaults[field.name])
            lines.append(f"| `{field.name}` | {field.kind.says} | {default} | {field.help} |".replace("  ", " "))
    return lines


def routes_page() -> list[str]:
    lines = [
        "# Routes of the coordinator",
        "",
        "What is asked and answered in full: [openapi.json](openapi.json), as the coordinator serves it at",
        "`/v1/openapi.json`. How to use it: [the guide](../guides/http-api.md).",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, operations in served_document()["paths"].items():
        for method, operation in operations.items():
            summary = operation.get("description") or operation["summary"]
            row = f"| {method.upper()} | `{path}` | {summary.partition(chr(10))[0].rstrip('.')} |"
            by_tag.setdefault(operation["tags"][0], []).append(row)
    for tag, rows in by_tag.items():
        lines += ["", f"## {tag[0].upper()}{tag[1:]}", "", "| | route | |", "|---|---|---|", *rows]
    return lines


def openapi_document() -> list[str]:
    return [json.dumps(served_document(), indent=1, ensure_ascii=False, sort_keys=True)]


@cache
def served_document() -> dict[str, Any]:
    """Ask a coordinator, started for this, what it says of itself."""
    with tempfile.TemporaryDirectory() as home:
        serve = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "serve", "--listen", "127.0.0.1:0", "--json", "--quiet"],
            env={**os.environ, "STOKER_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert serve.stdout is not None
            ready = json.loads(serve.stdout.readline())
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            opener.addheaders = [("X-Operator-Token", Path(ready["token_file"]).read_text().strip())]
            with opener.open(f"{ready['url']}/v1/openapi.json", timeout=60) as answer:
                document: dict[str, Any] = json.load(answer)
        finally:
            serve.terminate()
            serve.communicate(timeout=60)
    return document


def _default(value: object) -> str:
    if value is None or value in ("", (), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _leaves(kind: type[errors.StokerError]) -> set[type[errors.StokerError]]:
    return {kind, *(leaf for below in kind.__subclasses__() for leaf in _leaves(below))}


if __name__ == "__main__":
    sys.exit(main())
