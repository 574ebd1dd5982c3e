"""Rules of a manifest beyond its single values: names, dependencies, devices, machines, sweeps.

All faults are noted, each with its place. Reading the file is in `manifest_file`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from stoker.config.fields import FileDiagnostics, ParsedMap, is_version, shown
from stoker.config.file_set import sweep_in
from stoker.config.sweep import Sweep, paths_of
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean

_MOST_NAMED = 20
_LONGEST_CIRCLE = 8
_ABOUT_DEVICES = frozenset(
    {"require_cuda", "prefer_cuda", "min_vram_gib", "gpus", "gpu_backend", "shares", "base", "base_gib"}
)
_ABOUT_WORK = frozenset({"recipe", "model", "command"})
_ABOUT_INTERPRETERS = frozenset({"env", "python"})
_ABOUT_HOSTS = frozenset({"allowed_hosts", "prefer_hosts"})


@frozen
class KnownNames:
    """Names that a manifest may refer to. `None` means unknown, so none is refused."""

    recipes: Collection[str] | None = None
    """By their whole names; a file may use the last part alone."""
    modes: Collection[str] | None = None
    jobs: Collection[str] | None = ()
    """Jobs beside those in the file, for `after`."""
    hosts: Collection[str] | None = None


def check_manifest(
    jobs: Sequence[ParsedMap], hosts: Sequence[ParsedMap], reading: FileDiagnostics, known: KnownNames
) -> dict[str, Sweep]:
    """Note all faults of jobs and hosts beyond their single values.

    Returns the sweeps that were read meanwhile, by the key of their job.
    """
    _check_names(jobs, "job", reading)
    names = {job.get("name") for job in jobs if "name" in job.values}
    sweeps: dict[str, Sweep] = {}
    good: set[tuple[Any, Any, Any]] = set()
    waits = False
    for job in jobs:
        keys = job.node.value.keys()
        # Most jobs are short, and there may be ten thousand of them, of a few kinds.
        values = job.values
        names_known = (values.get("recipe"), values.get("model"), values.get("mode"))
        if len(keys & _ABOUT_WORK) != 1 or not keys.isdisjoint(_ABOUT_INTERPRETERS):
            _check_work(job, reading)
        if names_known not in good:
            before = reading.count
            _check_known(job, reading, known)
            if reading.count == before:
                good.add(names_known)
        if not keys.isdisjoint(_ABOUT_DEVICES):
            _check_devices(job, reading)
        if not keys.isdisjoint(_ABOUT_HOSTS):
            _check_hosts(job, reading, known)
        if "sweep" in keys:
            _check_sweep(job, reading, sweeps)
        if "after" in keys:
            waits = True
            _check_after(job, reading, names, known)
    if waits:
        _check_circles(jobs, reading)
    _check_names(hosts, "host", reading)
    return sweeps


def _check_names(entries: Sequence[ParsedMap], noun: str, reading: FileDiagnostics) -> None:
    first: dict[str, ParsedMap] = {}
    for entry in entries:
        name = entry.values.get("name")
        if name is not None and first.setdefault(name, entry) is not entry:
            hint = f"first on line {first[name].at('name').line}"
            _refuse(entry, "name", reading, f"duplicate {noun} name {name!r}", hint)


def _check_work(job: ParsedMap, reading: FileDiagnostics) -> None:
    given = [name for name in ("recipe", "model", "command") if job.says(name)]
    if not given:
        hint = 'command = "python train.py", or recipe = "tabular/gbt"'
        reading.refuse(job.node, job.key, f"{_called(job)} has neither recipe, model nor command", hint)
    elif len(given) > 1:
        message = f"{_called(job)} has {' and '.join(given)}: only one of them is allowed"
        reading.refuse(job.at(given[1]), f"{job.key}.{given[1]}", message, at_key=True)
    env, python = job.get("env", {}), job.get("python", {})
    if any(not is_version(python.get(platform, "3")) for platform in env):
        message = f"{_called(job)} has env and python: nothing is installed for the machine's own interpreter"
        reading.refuse(job.at("python"), f"{job.key}.python", message, "one of them, or a version: 3.11", at_key=True)


def _check_known(job: ParsedMap, reading: FileDiagnostics, known: KnownNames) -> None:
    for name, names in (("recipe", known.recipes), ("model", known.recipes), ("mode", known.modes)):
        value = job.get(name)
        if value is not None and names is not None and not _is_known(value, names):
            hint = "" if reading.is_full else did_you_mean(value, names)
            message = f"{_called(job)}: there is no {name} {shown(value)}; there are {_listed(names)}"
            _refuse(job, name, reading, message, hint)


def _is_known(value: str, names: Collection[str]) -> bool:
    """Return True if a name is one of these, or the last part of exactly one."""
    return value in names or sum(name.rpartition("/")[2] == value for name in names) == 1


def _check_devices(job: ParsedMap, reading: FileDiagnostics) -> None:
    vram_gib = job.get("min_vram_gib", 0.0)
    wants = [name for name in ("require_cuda", "prefer_cuda", "min_vram_gib", "gpu_backend", "shares") if job.get(name)]
    if job.get("gpus") == 0 and wants:
        _refuse(job, "gpus", reading, f"{_called(job)} has gpus = 0 and {wants[0]}", "remove one of them")
    if job.get("shares") and not vram_gib and not _is_wrong(job, "min_vram_gib"):
        message = f"{_called(job)} shares its device without a limit"
        _refuse(job, "shares", reading, message, "min_vram_gib is the limit")
    if job.says("base") != job.says("base_gib"):
        name, other = ("base", "base_gib") if job.says("base") else ("base_gib", "base")
        _refuse(job, name, reading, f"{_called(job)} has {name} without {other}", "a base has a name and a size")
    elif job.get("base_gib", 0.0) > vram_gib and not _is_wrong(job, "min_vram_gib"):
        message = f"{_called(job)}: its base of {job.get('base_gib'):g} GiB is more than min_vram_gib, {vram_gib:g}"
        _refuse(job, "base_gib", reading, message, "min_vram_gib includes the base")


def _check_hosts(job: ParsedMap, reading: FileDiagnostics, known: KnownNames) -> None:
    allowed = job.get("allowed_hosts", ())
    for name in ("allowed_hosts", "prefer_hosts"):
        for index, host in enumerate(job.get(name, ())):
            if known.hosts is not None and host not in known.hosts:
                hint = "" if reading.is_full else did_you_mean(host, known.hosts)
                message = f"{_called(job)}: there is no machine {shown(host)}; there are {_listed(known.hosts)}"
                _refuse_item(job, name, index, reading, message, hint)
            elif name == "prefer_hosts" and allowed and host not in allowed:
                message = f"{_called(job)} prefers {host}, which allowed_hosts leaves out"
                _refuse_item(job, name, index, reading, message, "")


def _check_sweep(job: ParsedMap, reading: FileDiagnostics, sweeps: dict[str, Sweep]) -> None:
    if "sweep" not in job.values:
        return
    sweep, faults = sweep_in(reading.source, job.at("sweep"), f"{job.key}.sweep")
    reading.add(faults)
    if sweep is not None:
        sweeps[job.key] = sweep
    hyper = job.get("hyper", {})
    for path in paths_of(sweep) if sweep is not None else ():
        if path in hyper:
            message = f"{_called(job)}: {path} is in hyper and in sweep"
            reading.refuse(job.at("hyper").value[path], f"{job.key}.hyper.{path}", message, "remove one", at_key=True)


def _check_after(job: ParsedMap, reading: FileDiagnostics, names: Collection[str], known: KnownNames) -> None:
    for index, name in enumerate(job.get("after", ())):
        if name not in names and known.jobs is not None and name not in known.jobs:
            hint = "" if reading.is_full else did_you_mean(name, [*names, *known.jobs])
            message = f"{_called(job)} waits for {shown(name)}, and there is no such job"
            _refuse_item(job, "after", index, reading, message, hint)


def _check_circles(jobs: Sequence[ParsedMap], reading: FileDiagnostics) -> None:
    """Note a job that depends on itself, directly or through others, at the `after` that closes the cycle."""
    by_name: dict[str, ParsedMap] = {}
    for job in jobs:
        if "name" in job.values:
            by_name.setdefault(job.get("name"), job)
    for circle in _circles({name: job.get("after", ()) for name, job in by_name.items()}):
        last = by_name[circle[-1]]
        index = last.get("after").index(circle[0])
        shortened = [*circle[: _LONGEST_CIRCLE - 1], "…", circle[-1]] if len(circle) > _LONGEST_CIRCLE else circle
        message = f"{circle[0]} waits for itself: {' → '.join([*shortened, circle[0]])}"
        _refuse_item(last, "after", index, reading, message, "")
        if reading.is_full:
            return


def _circles(after: dict[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Walk along `after` from every job; yield each cycle."""
    done: set[str] = set()
    for start, following in after.items():
        if start not in done:
            yield from _circles_from(start, iter(following), after, done)


def _circles_from(
    start: str, following: Iterator[str], after: dict[str, tuple[str, ...]], done: set[str]
) -> Iterator[list[str]]:
    # A path may be as long as there are jobs, so it is walked without recursion.
    path, ahead = [start], [following]
    places = {start: 0}
    while path:
        for name in ahead[-1]:
            if name in places:
                yield path[places[name] :]
            elif name in after and name not in done:
                places[name] = len(path)
                path.append(name)
                ahead.append(iter(after[name]))
                break
        else:
            ahead.pop()
            done.add(path[-1])
            del places[path.pop()]


def _refuse(entry: ParsedMap, name: str, reading: FileDiagnostics, message: str, hint: str) -> None:
    reading.refuse(entry.at(name), f"{entry.key}.{name}", message, hint)


def _refuse_item(entry: ParsedMap, name: str, index: int, reading: FileDiagnostics, message: str, hint: str) -> None:
    reading.refuse(entry.at(name).value[index], f"{entry.key}.{name}[{index}]", message, hint)


def _is_wrong(entry: ParsedMap, name: str) -> bool:
    return entry.says(name) and name not in entry.values


def _called(job: ParsedMap) -> str:
    name = job.get("name")
    return f"job {name}" if name else f"the job {job.key}"


def _listed(names: Collection[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(sorted(names)[:_MOST_NAMED]) + more
