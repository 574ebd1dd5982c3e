"""`stoker serve`: the coordinator of a fleet, in this process, until it is told to end."""

from __future__ import annotations

import os
from typing import Any

from stoker.coordinator.service.options import Ready, ServeOptions
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, duration
from stoker.faces.cli.output import Output
from stoker.model.units import format_duration
from stoker.wire.orders import Submission

GRAMMAR = Grammar(
    "serve",
    about=(
        "Serve a queue of jobs: workers join it, people submit to it. One process, SQLite in a file unless another "
        "database is named; it listens to this machine alone unless told otherwise. Ctrl-C or TERM ends it in order, "
        "and nothing that was answered is lost; HUP reads the cluster file and the manifest again."
    ),
    options=(
        Option("--db", value="URL", help="sqlite:///PATH or postgresql://…; unless told, a file below STOKER_HOME"),
        Option("--listen", value="HOST:PORT", help="127.0.0.1:7717 unless told; port 0 is any that is free"),
        Option("--cluster", value="FILE", help="which machines there are, and under which policy"),
        Option("--manifest", value="FILE", help="jobs to begin with"),
        Option("--lease", value="TIME", read=duration, help="how long a silent worker keeps its jobs, 90s unless told"),
        Option("--heartbeat", value="TIME", read=duration, help="how often workers speak, 30s unless told"),
        Option("--token-file", value="FILE", help="the operator's token; needed to listen to other machines"),
    ),
    examples=(
        "stoker serve",
        "stoker serve --manifest manifest.toml --cluster cluster.yaml",
        "stoker serve --db postgresql://stoker@localhost/stoker",
        "stoker serve --listen 127.0.0.1:0 --json",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Serve."""
    options = ServeOptions(
        db=given["db"] or "",
        listen=given["listen"] or "",
        cluster=_path(call, given["cluster"]),
        manifest=_path(call, given["manifest"]),
        lease_s=given["lease"],
        heartbeat_s=given["heartbeat"],
        token_file=_path(call, given["token_file"]),
    )
    out = call.out
    out.goes_on_unread = out.is_watched = True
    serving = call.parts.serving(options, lambda path: _read_manifest(call, path))
    return serving.run(on_ready=lambda ready: _tell(out, ready), say=out.note)


def _tell(out: Output, ready: Ready) -> None:
    """Say what is served, and what to type next."""
    out.object({**ready.to_dict(), "pid": os.getpid()})
    for line in ready.files.notes:
        out.line(f"  {line}")
    times = ready.times
    out.line(f"serving {ready.url}, {ready.database}")
    out.line(
        f"leases {format_duration(times.lease_s)}, a heartbeat every {format_duration(times.heartbeat_s)}; "
        + ("open to this machine" if ready.is_open else "everybody needs the operator's token")
    )
    if ready.token_file:
        out.line(f"operator's token in {ready.token_file}")
    out.note(f"next: stoker work --join {ready.url}   then: stoker submit manifest.toml")


def _read_manifest(call: Call, path: str) -> Submission:
    from stoker.plan.code_identity import CodeIdentity
    from stoker.worker.submitting.manifest_orders import read_orders

    code = CodeIdentity(os.path.join(call.parts.settings.state, "code.json"))
    return read_orders(path, desk=call.desk(), code=code).submission(submitter="coordinator")


def _path(call: Call, text: str | None) -> str:
    return call.path(text) if text else ""
