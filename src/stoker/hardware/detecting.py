"""One snapshot of this machine: processors, memory, devices, interpreters and their torch, with who said what.

`detect` never raises on what it finds, starts nothing that would touch a device (probes do, in children of their own),
and imports no framework. Only a wish that can't be fulfilled, such as a misspelt fake, is an error.

    python -m stoker.hardware.detecting     prints the snapshot as JSON
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from stoker.hardware.admission import memory_here
from stoker.hardware.host_name import host_name
from stoker.hardware.interpreters import ASKING_S, ask_torch, read_interpreters
from stoker.hardware.probes.asking import Asker, Said
from stoker.hardware.probes.found import Found
from stoker.hardware.processors import Processors, read_cpuinfo, read_sysctl
from stoker.host.disk import usable_cores
from stoker.model.capability import Capability
from stoker.model.errors import StokerError

_GIT_LIMIT_S = 2.0
_SYSCTL = ("sysctl", "machdep.cpu.brand_string", "hw.physicalcpu", "hw.logicalcpu")


def detect(  # noqa: PLR0913 - what a snapshot is made of
    environment: Mapping[str, str],
    *,
    find: Callable[[], Found],
    ask: Asker,
    folder: str,
    hostname: str = "",
    pythons: Sequence[str] = (),
    recipes: Sequence[str] = (),
    files: str = "/",
    deep: bool = False,
) -> Capability:
    """Take a snapshot.

    `find` finds the devices, `folder` is whose commit is the code's, `pythons` are the interpreters to look at,
    `files` is the root below which the kernel's listings lie. Deep: a Python whose files tell of no torch is asked.
    """
    proc = os.path.join(files, "proc")
    found = find()
    processors, listed_by = _processors(proc, ask)
    cores, threads, cores_by = _usable(processors, proc, listed_by)
    memory = memory_here(proc)
    name, name_by = host_name(environment, hostname)
    about = os.uname()
    interpreters = read_interpreters(pythons, environment.get("HOME", ""))
    if deep:
        interpreters = tuple(ask_torch(one, ask) for one in interpreters)
    return Capability(
        hostname=name,
        os=f"{about.sysname} {about.release}",
        arch=about.machine,
        cpu_name=processors.name,
        cpu_cores=cores,
        cpu_threads=threads,
        ram_total_bytes=memory.total_bytes,
        ram_available_bytes=memory.available_bytes,
        devices=found.devices,
        backends=found.backends,
        python_version=".".join(map(str, sys.version_info[:3])),
        interpreters=interpreters,
        recipes=tuple(recipes),
        training_commit=git_head(folder, ask),
        findings=found.findings,
        sources={
            "hostname": name_by,
            "os": "kernel",
            "cpu_name": listed_by or "nobody",
            "cpu_cores": cores_by,
            "ram": "nobody" if memory.total_bytes is None else "kernel",
            "interpreters": "installed files, torch" if deep else "installed files",
            "training_commit": "git",
            "recipes": "cookbooks",
            **found.sources,
        },
        is_fake=found.is_fake,
    )


def git_head(folder: str, ask: Asker) -> str:
    """Give the commit that is checked out around a folder; nothing without git, a repository or an answer in 2 s."""
    place = os.path.abspath(folder)
    while not os.path.exists(os.path.join(place, ".git")):
        if place == os.path.dirname(place):
            return ""
        place = os.path.dirname(place)
    reply = ask.ask(["git", "-C", place, "rev-parse", "--verify", "--quiet", "HEAD"], limit_s=_GIT_LIMIT_S)
    commit = reply.out.strip() if isinstance(reply, Said) and reply.exit_code == 0 else ""
    return commit if len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef") else ""


def _processors(proc: str, ask: Asker) -> tuple[Processors, str]:
    try:
        with open(f"{proc}/cpuinfo", encoding="utf-8", errors="replace") as file:
            read = read_cpuinfo(file.read())
    except OSError:
        if sys.platform == "darwin":
            reply = ask.ask(_SYSCTL)
            return read_sysctl(reply.out), "sysctl"
        return Processors(), ""
    return read, "cpuinfo"


def _usable(processors: Processors, proc: str, source: str) -> tuple[int, int, str]:
    """Give cores and threads that work may have, and who says it: a container's limits count, not its machine's."""
    logical = processors.threads or os.cpu_count() or 1
    cores = processors.cores or logical
    usable = usable_cores(proc)
    if usable < cores:
        return usable, min(usable, logical), "limits of this process"
    return cores, min(usable, logical), source if processors.cores else "logical count"


def _print() -> int:
    from stoker.hardware.probes.asking import ProcessAsker  # noqa: PLC0415 - for whoever runs this module
    from stoker.hardware.probes.devices import find_devices  # noqa: PLC0415 - the same
    from stoker.model.json_text import dumps  # noqa: PLC0415 - the same

    environment = os.environ  # noqa: TID251 - run by itself, this module is the front door
    ask = ProcessAsker(environment)
    try:
        snapshot = detect(
            environment,
            find=lambda: find_devices(environment, ask=ask, python=sys.executable, torch_limit_s=ASKING_S),
            ask=ask,
            folder=os.getcwd(),
            pythons=[sys.executable],
        )
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\nhint: {error.hint}\n")
        return error.exit_code
    sys.stdout.write(dumps(snapshot.to_dict(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_print())
