"""`stoker serve`: the coordinator of a fleet, in this process, until a signal ends it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import Grammar, Option, duration, size
from stoker.cli.services import INSTALL, UNINSTALL, YES, refuse_both
from stoker.coordinator.http.server_options import KeepTree, ListeningCoordinator, ServeOptions
from stoker.core.text import format_duration

if TYPE_CHECKING:
    from stoker.protocol.job_messages import Submission

GRAMMAR = Grammar(
    "serve",
    about=(
        "Serve a queue of jobs: workers join it, people submit to it. One process, SQLite in a file unless another "
        "database is named. By default it serves this machine alone: workers and commands of the same user reach it "
        "over a Unix socket, without set-up; over TCP only /v1/health answers without a token. At any other address "
        "(--listen) it speaks TLS from its own CA: machines and people join with a code (`stoker machines invite`). "
        "Ctrl-C or TERM ends it in order, and nothing that was answered is lost; HUP reads the cluster file and the "
        "manifest again. With --install it starts with this machine, listens to others, and has a worker beside it."
    ),
    options=(
        Option("--db", value="URL", help="sqlite:///PATH or postgresql://…; unless told, a file below STOKER_HOME"),
        Option("--listen", value="HOST:PORT", help="127.0.0.1:7717 unless told; port 0 is any that is free"),
        Option("--cluster", value="FILE", help="which machines there are, and under which policy"),
        Option("--manifest", value="FILE", help="jobs to begin with"),
        Option("--lease", value="TIME", read=duration, help="how long a silent worker keeps its jobs, 90s unless told"),
        Option("--heartbeat", value="TIME", read=duration, help="how often workers speak, 30s unless told"),
        Option("--keep-events", value="TIME", read=duration, help="how long old events stay, 90d unless told"),
        Option(
            "--upload-limit",
            value="SIZE",
            read=size,
            help="the most that one job's code, one input or one result may be: 20G; unless told, 1 TiB, and in any "
            "case 2 GiB of the disk stay free of code and data",
        ),
        Option("--token-file", value="FILE", help="the operator's token; unless told, one is made below STOKER_HOME"),
        Option("--advertise", value="NAME[,NAME]", help="names by which other machines reach it, beside its own"),
        Option("--certificate-life", value="TIME", read=duration, help="of machines' certificates, 30d unless told"),
        Option(
            "--accept-code",
            value="REPO[:BRANCH]",
            help="take only programs whose code is one of the last 100 commits of this git repository",
        ),
        Option(
            "--system-a",
            help="serve the routes of system A; its workers have no credentials, so on loopback every process of this "
            "machine may claim jobs and report results (default: off)",
        ),
        INSTALL,
        UNINSTALL,
        YES,
    ),
    examples=(
        "stoker serve",
        "stoker serve --manifest manifest.toml --cluster cluster.yaml",
        "stoker serve --db postgresql://stoker@localhost/stoker",
        "stoker serve --listen 0.0.0.0 --advertise desk.example.org",
        "stoker serve --accept-code /srv/git/project.git:main",
        "stoker serve --install",
        "stoker serve --listen 127.0.0.1:0 --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Serve."""
    refuse_both(given)
    if given["install"] or given["uninstall"]:
        from stoker.cli.services import install_serve, uninstall_serve

        return install_serve(call, given) if given["install"] else uninstall_serve(call)
    options = ServeOptions(
        db=given["db"] or "",
        listen=given["listen"] or "",
        cluster=_path(call, given["cluster"]),
        manifest=_path(call, given["manifest"]),
        lease_s=given["lease"],
        heartbeat_s=given["heartbeat"],
        events_kept_s=given["keep_events"],
        token_file=_path(call, given["token_file"]),
        upload_limit_bytes=given["upload_limit"],
        advertise=given["advertise"] or "",
        certificate_life_s=given["certificate_life"],
        **_accepted_code(call, given["accept_code"]),
        system_a=given["system_a"],
    )
    out = call.out
    out.goes_on_unread = out.is_watched = True
    serving = call.parts.serving(options, lambda path, keep, url: _read_manifest(call, path, keep, url))
    return serving.run(on_ready=lambda ready: _tell(out, ready), say=out.note)


def _tell(out: CliOutput, ready: ListeningCoordinator) -> None:
    """Say what is served, and what to type next."""
    out.object({**ready.to_dict(), "pid": os.getpid()})
    for line in ready.files.notes:
        out.line(f"  {line}")
    times = ready.times
    out.line(f"serving {ready.url}, {ready.database}")
    out.line(
        f"leases {format_duration(times.lease_s)}, a heartbeat every {format_duration(times.heartbeat_s)}; "
        + ("for this user of this machine" if ready.is_open else "TLS from the fleet's own CA")
    )
    out.line(f"socket {ready.socket}")
    if ready.system_a:
        out.complain(system_a_warning(is_tls=bool(ready.ca_file)))
    if ready.token_file:
        out.line(f"operator's token in {ready.token_file}")
    join = f"stoker work --join {ready.url}" if ready.is_open else "stoker machines invite"
    out.note(f"next: {join}   then: stoker submit manifest.toml")


def system_a_warning(*, is_tls: bool) -> str:
    """Return the warning for those who serve system A."""
    if is_tls:
        return "WARNING: the routes of system A are on (--system-a); their workers need a machine's certificate"
    return (
        "WARNING: the routes of system A are on (--system-a): every user of this machine may claim jobs, report "
        "results and list jobs, without credentials"
    )


def _read_manifest(call: CommandContext, path: str, keep: KeepTree, url: str) -> Submission:
    """Read it as `submit` does; its code and data are kept first. Data stays where all machines are this one."""
    from stoker.engine.code_identity import CodeIdentity
    from stoker.jobs.request import JobRequest
    from stoker.jobs.submission import prepare

    code = CodeIdentity(os.path.join(call.parts.settings.state, "code.json"))
    prepared = prepare(JobRequest(target=path, is_manifest=True), builder=call.builder(), code=code)
    for one in prepared.to_send(url):
        keep(one.tree, one.source(call.parts.store).open)
    return prepared.submission(submitter="coordinator")


def _accepted_code(call: CommandContext, text: str | None) -> dict[str, str]:
    """Read `REPO[:BRANCH]`; a path with a colon in it may be meant, too."""
    if not text:
        return {}
    path, colon, branch = text.rpartition(":")
    if not colon or os.path.exists(call.path(text)):
        return {"code_repository": call.path(text)}
    return {"code_repository": call.path(path), "code_branch": branch}


def _path(call: CommandContext, text: str | None) -> str:
    return call.path(text) if text else ""
