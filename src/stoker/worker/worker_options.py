"""Options of a worker, and their parsing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from stoker.core.device import MIB
from stoker.core.errors import Usage
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import parse_size
from stoker.host.durable import read_regular, write_file
from stoker.host.http.exchange import FleetIdentity
from stoker.protocol.job_checks import is_tree

_MOST_ACCEPTED = 1000
_HINT = "--declare cores=2,ram=4G,gpus=0"


@frozen
class WorkOptions:
    """The options of one worker."""

    url: str = ""
    identity: FleetIdentity | None = None
    """The coordinator's socket on this machine; or, if the machine has joined, the fleet's CA and its certificate."""
    renews_certificate: bool = True
    """False: the certificate of a ticket, which ends with its allocation."""
    name: str = ""
    """Empty: the machine's own."""
    slots: int | None = None
    declared: dict[str, int | list[str]] = fresh(factory=dict)
    is_once: bool = False
    until_idle: bool = False
    ends_s: float | None = None
    """When it has to be gone, on the boot-time clock; None: when it is stopped."""
    drain: tuple[float, float] = (0.0, 0.0)
    """It releases everything and stops so many seconds before: at least, and at most if checkpoints need longer."""
    idle_s: float | None = None
    """It stops after so long without a job; None: never."""
    stop_grace_s: float | None = None
    """Grace period of a job that is stopped; None: the default."""
    accepts: tuple[str, ...] = ()
    """Trees whose code alone it accepts; none: any."""
    keeps_workspaces: bool = False
    """Keep the folders of programs for their owner to inspect."""
    run_as: str = ""
    """The users that programs of jobs run as: `USER[,USER…]` or `UID-UID`; empty: the worker's own."""


def read_declared(words: Iterable[str]) -> dict[str, int | list[str]]:
    """Parse `cores=2,ram=4G,gpus=0`; `gpus` may also name devices, with + between. Raises `Usage`."""
    found: dict[str, int | list[str]] = {}
    for word in (part.strip() for text in words for part in text.split(",") if part.strip()):
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise Usage(f"--declare: {word!r} is not KEY=VALUE", hint=_HINT)
        if name in ("cores", "slots"):
            found[name] = _whole(name, value, least=1)
        elif name == "ram":
            found["ram_bytes"] = _size(value)
        elif name == "gpus":
            found[name] = _whole(name, value, least=0) if value.isdigit() else value.split("+")
        else:
            raise Usage(f"--declare: unknown key {name!r}", hint=_HINT)
    return found


def within_allocation(
    declared: Mapping[str, int | list[str]], environment: Mapping[str, str]
) -> dict[str, int | list[str]]:
    """Return what was declared, with cores and memory at most those of the Slurm allocation that this runs in.

    Without cgroups a process sees the whole node, of which the rest belongs to other allocations.
    """
    if not environment.get("SLURM_JOB_ID"):
        return dict(declared)
    cpus, cpus_of_task, mib, mib_of_cpu = (
        _number(environment, name)
        for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")
    )
    cores = min(filter(None, (cpus, cpus_of_task)), default=0)
    # `--mem-per-cpu` counts all CPUs on the node.
    ram_bytes = (mib or mib_of_cpu * (cpus or cores)) * MIB
    found = dict(declared)
    for name, limit in (("cores", cores), ("ram_bytes", ram_bytes)):
        value = declared.get(name, limit)
        if limit and isinstance(value, int):
            found[name] = min(value, limit)
    return found


def _number(environment: Mapping[str, str], name: str) -> int:
    """Return a whole number of an environment; 0 if there is none. Slurm writes 0 where all of it is allocated."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def read_accepted(words: Iterable[str], read_lines: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Parse `TREE,…` and `@FILE` with one on each line; `#` starts a comment. Raises `Usage`."""
    found: dict[str, None] = {}
    for part in (part.strip() for text in words for part in text.split(",") if part.strip()):
        lines = [line.partition("#")[0].strip() for line in read_lines(part[1:])] if part.startswith("@") else [part]
        for word in filter(None, lines):
            if not is_tree(word):
                raise Usage(
                    f"--accept-code: {word[:80]!r} is not the digest of a tree",
                    hint="all 64 digits of `code` of stoker submit --json; a commit is what the submitter says it is",
                )
            found[word] = None
    if len(found) > _MOST_ACCEPTED:
        raise Usage(f"--accept-code names {len(found):,}; {_MOST_ACCEPTED:,} are the most", hint="name those in use")
    if words and not found:
        raise Usage("--accept-code names no code at all", hint="leave it out to accept any")
    return tuple(found)


def _whole(name: str, value: str, *, least: int) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise Usage(f"--declare: {name}={value} is not a whole number of at least {least}", hint=_HINT)
    return int(value)


def _size(value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise Usage(f"--declare: ram={value}: {error}", hint=_HINT) from None


# A machine's owner needs it for a while: a pause in a file, read by every worker of this home.

PAUSE = "pause.json"
PAUSED = "paused"
"""The prefix of every reason for a pause, including the coordinator's."""
_LARGEST_BYTES = 4096


LOCK_FILE = "lock"
"""In a worker's folder: held while it runs."""


def workers_folder(state: str) -> str:
    """Return the folder of the workers of a home, each in a folder of its name."""
    return os.path.join(state, "worker")


@frozen
class Pause:
    """A pause of all workers of a home."""

    until_s: float | None
    """By the wall clock; None: until it is withdrawn."""
    since_s: float
    by: str = ""

    def why(self) -> str:
        """Return it as a line."""
        until = "" if self.until_s is None else f" until {datetime.fromtimestamp(self.until_s, UTC):%Y-%m-%d %H:%M} UTC"
        who = f" by {self.by}" if self.by else ""
        return f"{PAUSED}{who}{until}"


def write_pause(state: str, pause: Pause) -> None:
    """Write a pause; the newest one counts."""
    body = {"v": 1, "until_s": pause.until_s, "since_s": pause.since_s, "by": pause.by}
    write_file(os.path.join(state, PAUSE), dumps(body).encode())


def clear_pause(state: str) -> None:
    """Delete the pause."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(state, PAUSE))


def read_pause(state: str, *, now_s: float) -> Pause | None:
    """Return the pause that is valid now, if any."""
    try:
        raw = loads(read_regular(os.path.join(state, PAUSE), _LARGEST_BYTES))
        until = raw["until_s"]
        pause = Pause(until_s=None if until is None else float(until), since_s=float(raw["since_s"]), by=str(raw["by"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if pause.until_s is not None and now_s >= pause.until_s else pause
