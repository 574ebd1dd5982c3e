"""`stoker exec`: a command, or a shell, inside a running job of the fleet: in its folder, with its environment."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_names import fleet_job
from stoker.cli.screens import is_at_terminal, terminal_size
from stoker.core.errors import Usage
from stoker.jobs.submitter import who_asks

GRAMMAR = Grammar(
    "exec",
    about=(
        "Run a command inside a running job of the fleet, on the machine where it runs: in the job's folder, with its "
        "variables, devices and limits, as its user. Without a command, a shell. Its exit code is ours. Needs the role "
        "operate; who ran what is written into the job's story. The command ends with the job, or with this program."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--no-tty", help="give it no terminal, even if this is one"), AT),
    examples=("stoker exec resnet -- nvidia-smi", "stoker exec resnet", "stoker exec resnet/3 -- sh -c 'ls $DATA'"),
    takes_program=True,
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Run it."""
    argv = tuple(given["program"] or ())
    is_tty = is_at_terminal() and not call.flags.json and not given["no_tty"]
    if not argv and not is_tty:
        raise Usage("there is no terminal for a shell here", hint=f"stoker exec {given['name']} -- CMD …")
    job = fleet_job(call, given["name"], given["at"])
    if job.is_sweep and len(points := job.points()) > 1:
        raise Usage(f"{job.ref} has {len(points):,} points", hint=f"stoker exec {points[0].name} …")
    from stoker.cli.exec_session import follow
    from stoker.protocol.operator_messages import ExecRequest

    environment = call.parts.settings.environment
    rows, columns = terminal_size()
    asked = ExecRequest(
        argv=argv,
        is_tty=is_tty,
        rows=rows,
        columns=columns,
        term=environment.get("TERM", "")[:100] if is_tty else "",
        by=who_asks(environment),
    )
    return follow(call, job.client, job.client.begin_exec(job.view.id, asked), is_tty=is_tty)
