"""`stoker serve`: run the coordinator of a fleet in this process."""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import Grammar, Option, duration, size
from stoker.cli.services import INSTALL, UNINSTALL, YES, refuse_both
from stoker.coordinator.http.server_options import KeepTree, ListeningCoordinator, ServeOptions
from stoker.core.errors import AlreadyServing, DatabaseTrouble, InvalidCluster, InvalidManifest, NoPermission, Usage
from stoker.core.text import format_duration
from stoker.host.http.exchange import is_this_computer
from stoker.host.network import read_listen
from stoker.protocol.discovery import COORDINATOR, OPERATOR_TOKEN

if TYPE_CHECKING:
    from stoker.launch.service import SupervisedChild
    from stoker.protocol.job_messages import Submission

GRAMMAR = Grammar(
    "serve",
    about=(
        "Run the coordinator, which owns the queue of the fleet: one process with SQLite, or another database (--db). "
        "By default it serves only this machine: workers and commands of the same user connect over a Unix socket "
        "without set-up; over TCP only /v1/health answers without a token. At other addresses (--listen) it uses TLS "
        "with its own CA; machines and users join with a code (`stoker machines invite`). Ctrl-C or SIGTERM shuts it "
        "down gracefully; answered requests are durable. SIGHUP reads the cluster file and the manifest again. With "
        "--install it starts at boot, listens for other machines, and a worker runs beside it."
    ),
    options=(
        Option("--db", value="URL", help="sqlite:///PATH or postgresql://… (default: a file below STOKER_HOME)"),
        Option(
            "--objects",
            value="s3://BUCKET/PREFIX",
            help="store results, checkpoints, code and data in S3; machines exchange bytes with it directly (default: "
            "where they are; at first below STOKER_HOME)",
        ),
        Option("--listen", value="HOST:PORT", help="address; port 0 is any free one (default: 127.0.0.1:7717)"),
        Option("--cluster", value="FILE", help="cluster file with machines and policies"),
        Option("--manifest", value="FILE", help="manifest with initial jobs"),
        Option("--lease", value="TIME", read=duration, help="lease duration without a heartbeat (default: 90s)"),
        Option("--heartbeat", value="TIME", read=duration, help="heartbeat interval (default: 30s)"),
        Option("--keep-events", value="TIME", read=duration, help="retention of events (default: 90d)"),
        Option(
            "--upload-limit",
            value="SIZE",
            read=size,
            help="maximum size of a job's code, of an input and of a result; 2 GiB of disk always stay free (default: "
            "1 TiB)",
        ),
        Option(
            "--token-file", value="FILE", help="file with the operator's token (default: created below STOKER_HOME)"
        ),
        Option("--advertise", value="NAME[,NAME]", help="additional host names for other machines"),
        Option(
            "--public-url",
            value="URL",
            help="address of the web pages behind a reverse proxy, with its path: https://example.org/stoker",
        ),
        Option(
            "--certificate-life", value="TIME", read=duration, help="lifetime of machine certificates (default: 30d)"
        ),
        Option(
            "--accept-code",
            value="REPO[:BRANCH]",
            help="accept only programs whose code is one of the last 100 commits of this git repository",
        ),
        Option(
            "--system-a",
            help="serve the routes of system A; its workers have no credentials, so on loopback every process of this "
            "machine may claim jobs and report results (default: off)",
        ),
        Option(
            "--launch",
            help="also run `stoker launch watch`, as a child process with a token of its own that may only launch; "
            "it needs --listen, and the backends' commands and keys on this machine",
        ),
        INSTALL,
        UNINSTALL,
        YES,
    ),
    examples=(
        "stoker serve",
        "stoker serve --manifest manifest.toml --cluster cluster.yaml",
        "stoker serve --db postgresql://stoker@localhost/stoker",
        "stoker serve --objects s3://bucket/stoker",
        "stoker serve --listen 0.0.0.0 --advertise desk.example.org",
        "stoker serve --public-url https://example.org/stoker",
        "stoker serve --accept-code /srv/git/project.git:main",
        "stoker serve --listen 0.0.0.0 --cluster cluster.yaml --launch",
        "stoker serve --install",
        "stoker serve --listen 127.0.0.1:0 --json",
    ),
    errors=(Usage, NoPermission, InvalidCluster, InvalidManifest, DatabaseTrouble, AlreadyServing),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run the coordinator, or install its service."""
    refuse_both(given)
    if given["install"] or given["uninstall"]:
        from stoker.cli.services import install_serve, uninstall_serve

        return install_serve(call, given) if given["install"] else uninstall_serve(call)
    if given["launch"] and is_this_computer(read_listen(given["listen"] or "")[0] or "localhost"):
        raise Usage("--launch needs TLS: workers of pools join with tickets", hint="add --listen 0.0.0.0")
    options = ServeOptions(
        db=given["db"] or "",
        objects=given["objects"] or "",
        listen=given["listen"] or "",
        cluster=_path(call, given["cluster"]),
        manifest=_path(call, given["manifest"]),
        lease_s=given["lease"],
        heartbeat_s=given["heartbeat"],
        events_kept_s=given["keep_events"],
        token_file=_path(call, given["token_file"]),
        upload_limit_bytes=given["upload_limit"],
        advertise=given["advertise"] or "",
        public_url=given["public_url"] or "",
        certificate_life_s=given["certificate_life"],
        **_accepted_code(call, given["accept_code"]),
        system_a=given["system_a"],
        launch_token=secrets.token_urlsafe(32) if given["launch"] else "",
    )
    out = call.out
    out.goes_on_unread = out.is_watched = True
    serving = call.parts.serving(options, lambda path, keep, url: _read_manifest(call, path, keep, url))
    watcher = _watcher(call, options.launch_token) if options.launch_token else None

    def on_ready(ready: ListeningCoordinator) -> None:
        _announce(out, ready)
        if watcher is not None:
            watcher.start()

    def before_end() -> None:
        # It gives back its leases of pools, so that the next watcher need not wait until they expire.
        if watcher is not None:
            watcher.close()

    try:
        code = serving.run(on_ready=on_ready, say=out.note, before_end=before_end)
    finally:
        before_end()
    out.note("stopped")
    return code


def _watcher(call: CommandContext, token: str) -> SupervisedChild:
    """Return the child process that watches pools. It finds this coordinator by its home."""
    from stoker.host.sockets import for_children
    from stoker.launch.service import SupervisedChild

    out, settings = call.out, call.parts.settings
    environment = for_children(settings.environment)
    for name in (OPERATOR_TOKEN, COORDINATOR):
        environment.pop(name, None)
    words = ("launch", "watch", "--token-stdin", *(("--json",) if out.is_json else ()))

    def show(line: str) -> None:
        if out.is_json and line.startswith("{"):
            out.json_line(line)
        else:
            out.note(f"launch: {line}")

    return SupervisedChild(
        (sys.executable, "-m", "stoker", *words),
        folder=settings.folder,
        environment=environment,
        secret=token,
        on_line=show,
        clock=call.parts.clock,
    )


def _announce(out: CliOutput, ready: ListeningCoordinator) -> None:
    """Print the address and the next command."""
    out.object({**ready.to_dict(), "pid": os.getpid()})
    for line in ready.files.notes:
        out.line(f"  {line}")
    times = ready.times
    out.line(f"serving {ready.url}, {ready.database}" + (f", objects in {ready.objects}" if ready.objects else ""))
    out.line(
        f"lease {format_duration(times.lease_s)}, heartbeat {format_duration(times.heartbeat_s)}; "
        + ("only this user on this machine" if ready.is_open else "TLS from the fleet's own CA")
    )
    out.line(f"socket {ready.socket}")
    if ready.system_a:
        out.complain(system_a_warning(is_tls=bool(ready.ca_file)))
    if ready.token_file:
        out.line(f"operator's token in {ready.token_file}")
    out.line(f"web pages: {ready.pages_url}   log in: stoker ui")
    join = f"stoker work --join {ready.url}" if ready.is_open else "stoker machines invite"
    out.note(f"next: {join}   then: stoker submit manifest.toml")


def system_a_warning(*, is_tls: bool) -> str:
    """Return the warning for --system-a."""
    if is_tls:
        return "WARNING: the routes of system A are on (--system-a); their workers need a machine's certificate"
    return (
        "WARNING: the routes of system A are on (--system-a): every user of this machine may claim jobs, report "
        "results and list jobs, without credentials"
    )


def _read_manifest(call: CommandContext, path: str, keep: KeepTree, url: str) -> Submission:
    """Read the manifest like `submit`; store its code, and its data if there may be other machines."""
    from stoker.engine.code_identity import CodeIdentity
    from stoker.jobs.request import JobRequest
    from stoker.jobs.submission import prepare

    code = CodeIdentity(os.path.join(call.parts.settings.state, "code.json"))
    prepared = prepare(JobRequest(target=path, is_manifest=True), builder=call.builder(), code=code)
    for one in prepared.to_send(url):
        keep(one.tree, one.source(call.parts.store).open)
    return prepared.submission(submitter="coordinator")


def _accepted_code(call: CommandContext, text: str | None) -> dict[str, str]:
    """Parse `REPO[:BRANCH]`; an existing path may contain a colon."""
    if not text:
        return {}
    path, colon, branch = text.rpartition(":")
    if not colon or os.path.exists(call.path(text)):
        return {"code_repository": call.path(text)}
    return {"code_repository": call.path(path), "code_branch": branch}


def _path(call: CommandContext, text: str | None) -> str:
    return call.path(text) if text else ""
