"""Which torch each Python of this machine has, read from the files of its installation: nothing is started or imported.

An installed torch has its version and its build in `torch/version.py`, and again in the name of its `.dist-info`
folder. Only `ask_torch`, for a torch that is put on the path in other ways, starts a child.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.errors import StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.text import one_line
from stoker.devices.admission import memory_here
from stoker.devices.probes.observations import DetectedDevices
from stoker.devices.probes.others import torch_command
from stoker.devices.probes.readers import marked_objects
from stoker.devices.this_machine import host_name
from stoker.host.command_runner import CommandRunner, ProbeOutput
from stoker.host.durable import read_regular
from stoker.host.resources import usable_cores

ASKING_S = 60.0
"""Timeout of an import of torch."""
_MOST_BYTES = 64 * 1024
_BY_NAME = re.compile(r"python(3\.\d+)")
_INSTALLED = re.compile(r"torch-([^-]+)\.(?:dist|egg)-info", re.IGNORECASE)
_SAID = re.compile(r"""^(__version__|cuda|hip)\s*(?::[^=\n]+)?=\s*['"]([^'"\n]*)['"]""", re.MULTILINE)


def read_interpreters(paths: Iterable[str], home: str) -> tuple[MachineInterpreter, ...]:
    """Inspect each Python once, however many names lead to its environment. `home` contains a user's packages."""
    seen: set[tuple[str, str]] = set()
    found = []
    for path in paths:
        # Environments share their base's program, and several Pythons may be in one folder.
        which = (os.path.realpath(os.path.dirname(path)), os.path.realpath(path))
        if path and which not in seen:
            seen.add(which)
            found.append(read_interpreter(path, home))
    return tuple(found)


def read_interpreter(path: str, home: str) -> MachineInterpreter:
    """Inspect one Python: its version and its torch, as far as files show."""
    version, folders = _own() if path == sys.executable else _layout(path, home)
    torch, torch_cuda = torch_in(folders)
    why = "" if torch else "torch is not among its packages" if folders else "its packages were not found"
    return MachineInterpreter(path=path, version=version, torch=torch, torch_cuda=torch_cuda, why=why)


def ask_torch(one: MachineInterpreter, ask: CommandRunner) -> MachineInterpreter:
    """Have a child import the torch of an interpreter whose files show none: it may be on the path in other ways."""
    if one.torch:
        return one
    report: dict[str, Any] = {}
    for line in marked_objects(ask.ask(torch_command(one.path), limit_s=ASKING_S).out):
        report.update(line)
    if not report.get("torch"):
        why = report.get("error") or ("it has none" if report.get("missing") else "no output")
        return changed(one, why=f"import of torch: {one_line(str(why), 200)}")
    built = report.get("cuda") or report.get("hip") or ""
    return changed(one, torch=str(report["torch"]), torch_cuda=str(built), why="")


def torch_in(folders: Iterable[str]) -> tuple[str, str]:
    """Return the version of the first torch in these folders, and of the CUDA or ROCm that it was built for."""
    for folder in folders:
        assigned = _said(os.path.join(folder, "torch", "version.py"))
        version = assigned.get("__version__", "") or _named(folder)
        if version:
            return version, assigned.get("cuda", "") or assigned.get("hip", "")
    return "", ""


def _own() -> tuple[str, list[str]]:
    return ".".join(map(str, sys.version_info[:3])), [folder for folder in sys.path if os.path.isdir(folder)]


def _layout(path: str, home: str) -> tuple[str, list[str]]:
    """Return the version of a Python and the folders of its packages, by the layout of installations."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    config = _environment_config(prefix)
    if config:
        version = config.get("version", "") or config.get("version_info", "")
        places = [prefix]
        if config.get("include-system-site-packages", "").lower() == "true" and config.get("home"):
            places.append(os.path.dirname(config["home"]))
        return ".".join(version.split(".")[:3]), [one for place in places for one in _packages(place, _minor(version))]
    named = _BY_NAME.search(os.path.basename(os.path.realpath(path)))
    minor = named[1] if named else ""
    prefixes = dict.fromkeys([prefix, os.path.dirname(os.path.dirname(os.path.realpath(path)))])
    users = os.path.join(home, ".local") if home else ""
    return minor, [one for place in (users, *prefixes) if place for one in _packages(place, minor)]


def _packages(prefix: str, minor: str) -> Iterator[str]:
    """Return the folders of packages below a prefix; of the one Python that is there, if its version is not known."""
    minor = minor or _only_minor(prefix)
    if not minor:
        return
    for library in ("lib", "lib64", os.path.join("local", "lib")):
        for name in (f"python{minor}/site-packages", f"python{minor}/dist-packages", "python3/dist-packages"):
            folder = os.path.join(prefix, library, name)
            if os.path.isdir(folder):
                yield folder


def _only_minor(prefix: str) -> str:
    try:
        names = os.listdir(os.path.join(prefix, "lib"))
    except OSError:
        return ""
    minors = {found[1] for name in names if (found := _BY_NAME.fullmatch(name))}
    return minors.pop() if len(minors) == 1 else ""


def _environment_config(prefix: str) -> Mapping[str, str]:
    text = _text(os.path.join(prefix, "pyvenv.cfg"))
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _said(path: str) -> Mapping[str, str]:
    return dict(_SAID.findall(_text(path)))


def _named(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    return next((found[1] for name in names if (found := _INSTALLED.fullmatch(name))), "")


def _text(path: str) -> str:
    try:
        # Some installers fill an environment with links.
        return read_regular(os.path.realpath(path), _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


# The processors of a machine, from the kernel's list: physical cores, threads, make. Pure: the text is a parameter.

# Kernels on Arm list numbers where others list a name; these are common for training.
_ARM = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x4e", "0x004"): "Carmel",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}


@frozen
class Processors:
    """Content of a list; zero and empty if it has none."""

    cores: int = 0
    """Physical ones: distinct pairs of package and core."""
    threads: int = 0
    name: str = ""


def read_cpuinfo(text: str) -> Processors:
    """Read the kernel's list; a last record without a blank line behind it counts like the others."""
    pairs = set()
    threads, name = 0, ""
    for record in _records(text):
        threads += "processor" in record
        name = name or record.get("model name", "") or _arm_name(record)
        if "physical id" in record and "core id" in record:
            pairs.add((record["physical id"], record["core id"]))
    return Processors(cores=len(pairs), threads=threads, name=" ".join(name.split()))


def read_sysctl(text: str) -> Processors:
    """Read the output of `sysctl machdep.cpu.brand_string hw.physicalcpu hw.logicalcpu` (macOS). Untested on one."""
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    return Processors(
        cores=_count(values.get("hw.physicalcpu", "")),
        threads=_count(values.get("hw.logicalcpu", "")),
        name=values.get("machdep.cpu.brand_string", ""),
    )


def _records(text: str) -> Iterator[Mapping[str, str]]:
    record: dict[str, str] = {}
    for line in [*text.splitlines(), ""]:
        key, colon, value = line.partition(":")
        if colon:
            # Some kernels list all processors without a blank line between them.
            if key.strip() == "processor" and "processor" in record:
                yield record
                record = {}
            record[key.strip()] = value.strip()
        elif not line.strip() and record:
            yield record
            record = {}


def _arm_name(record: Mapping[str, str]) -> str:
    maker, part = record.get("CPU implementer", ""), record.get("CPU part", "")
    if not maker or not part:
        return ""
    return _ARM.get((maker.lower(), part.lower()), f"Arm {maker}/{part}")


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


# One snapshot of this machine: processors, memory, devices, interpreters and their torch, with the source of each.
#
# `detect` never raises on what it finds, starts nothing that would touch a device (probes do, in their children), and
# imports no framework. Only an invalid request, such as a misspelt fake, is an error.

_GIT_LIMIT_S = 2.0
_SYSCTL = ("sysctl", "machdep.cpu.brand_string", "hw.physicalcpu", "hw.logicalcpu")


def detect(  # noqa: PLR0913 - what a snapshot is made of
    environment: Mapping[str, str],
    *,
    find: Callable[[], DetectedDevices],
    ask: CommandRunner,
    folder: str,
    hostname: str = "",
    pythons: Sequence[str] = (),
    recipes: Sequence[str] = (),
    files: str = "/",
    deep: bool = False,
) -> Capability:
    """Take a snapshot.

    `find` detects the devices, `folder` is the repository of the code's commit, `pythons` are the interpreters to
    inspect, `files` is the root of the kernel's lists. Deep: a Python whose files show no torch is run.
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
            "cpu_name": listed_by or "unknown",
            "cpu_cores": cores_by,
            "ram": "unknown" if memory.total_bytes is None else "kernel",
            "interpreters": "installed files, torch" if deep else "installed files",
            "training_commit": "git",
            "recipes": "cookbooks",
            **found.sources,
        },
        is_fake=found.is_fake,
    )


def git_head(folder: str, ask: CommandRunner) -> str:
    """Return the commit that is checked out around a folder; nothing without git, a repository or a result in 2 s."""
    place = os.path.abspath(folder)
    while not os.path.exists(os.path.join(place, ".git")):
        if place == os.path.dirname(place):
            return ""
        place = os.path.dirname(place)
    reply = ask.ask(["git", "-C", place, "rev-parse", "--verify", "--quiet", "HEAD"], limit_s=_GIT_LIMIT_S)
    commit = reply.out.strip() if isinstance(reply, ProbeOutput) and reply.exit_code == 0 else ""
    return commit if len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef") else ""


def _processors(proc: str, ask: CommandRunner) -> tuple[Processors, str]:
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
    """Return cores and threads that work may use, and the source: a container's limits count, not its machine's."""
    logical = processors.threads or os.cpu_count() or 1
    cores = processors.cores or logical
    usable = usable_cores(proc)
    if usable < cores:
        return usable, min(usable, logical), "limits of this process"
    return cores, min(usable, logical), source if processors.cores else "logical count"


def _print() -> int:
    from stoker.core.jsontext import dumps  # noqa: PLC0415 - the same
    from stoker.devices.probes.inventory import find_devices  # noqa: PLC0415 - the same
    from stoker.host.command_runner import SubprocessRunner  # noqa: PLC0415 - only if this module is run

    environment = os.environ  # noqa: TID251 - run by itself, this module is the front door
    ask = SubprocessRunner(environment)
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
