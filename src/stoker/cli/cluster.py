"""`stoker cluster`: check and show a cluster file, and place jobs on its machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.cli.check import DeclaredFileCheck, show_declared
from stoker.cli.commands import verbs_of
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, instead
from stoker.config.cluster_file import node_as_json, read_cluster, render_cluster
from stoker.config.config_file import SUFFIXES
from stoker.config.manifest_file import JobEntry, overlaid, read_manifest
from stoker.config.manifest_rules import KnownNames
from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import size
from stoker.config.sweep_file import read_sweep
from stoker.core.errors import LocalFile, Usage
from stoker.core.machine import DEFAULT_RAM_BYTES, Cluster, Node
from stoker.core.text import counted, nearest
from stoker.devices.ledger.reservations import CandidateDevice
from stoker.devices.this_machine import host_name
from stoker.scheduler.explain import PlacementRequest, PlannedPlacements, plan_jobs
from stoker.scheduler.offers import NodeOffer, agree, node_name, node_of, offer_of, with_holders
from stoker.scheduler.score import COST_RULE
from stoker.views.placement_lines import explain_lines, job_line, why_lines

NAMES = ("cluster.yaml", "cluster.yml", "cluster.toml")
VARIABLE = "STOKER_CLUSTER"

FILE = Positional(
    "FILE",
    help=f"cluster file (default: {NAMES[0]} in this folder, else {VARIABLE})",
    is_required=False,
)


def choose_cluster(call: CommandContext, typed: str) -> tuple[str, str]:
    """Return the cluster file to use: its name and its absolute path. `typed` may be empty."""
    settings = call.parts.settings
    here = next((name for name in NAMES if os.path.exists(os.path.join(settings.folder, name))), "")
    chosen = typed or here or settings.environment.get(VARIABLE, "")
    if typed and not typed.endswith(SUFFIXES) and not os.path.exists(call.path(typed)):
        meant = nearest(typed, [verb.path[1] for verb in verbs_of("cluster")])
        near = f"did you mean `stoker cluster {meant}`?" if meant else f"a cluster file is {' or '.join(SUFFIXES)}"
        hint = instead("cluster", [typed]) or near
        raise Usage(f"stoker cluster: unknown command {typed!r}", hint=hint)
    if not chosen:
        hint = f"name a file, set {VARIABLE}, or create one: stoker machines export --out {NAMES[0]}"
        raise LocalFile(f"no {NAMES[0]} in this folder", hint=hint, path=NAMES[0])
    return chosen, call.path(chosen)


# `stoker cluster check`: all errors of a cluster file, with their lines.

CLUSTER_CHECK_GRAMMAR = Grammar(
    "cluster check",
    about=(
        "Check a cluster file: values, names, addresses, duplicate devices. Lists all errors, each with file, line, "
        "key and value. Exit code 23 if there are any."
    ),
    positionals=(FILE,),
    examples=("stoker cluster check", "stoker cluster check lab.yaml --json", "stoker check lab.yaml jobs.toml"),
)


def perform_cluster_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check a cluster file."""
    name, path = choose_cluster(call, given["file"])
    show_declared(call, [DeclaredFileCheck.of(name, path, read_cluster)])
    return 0


# `stoker cluster show`: the machines of a cluster file, a line for each.

CLUSTER_SHOW_GRAMMAR = Grammar(
    "cluster",
    about=(
        "Show the machines of a cluster file: name, address, transport, devices, and the maximum number of jobs at "
        "once."
    ),
    positionals=(FILE,),
    examples=("stoker cluster show", "stoker cluster show lab.yaml --json", "stoker cluster check lab.yaml"),
)


def perform_cluster_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a cluster file."""
    name, path = choose_cluster(call, given["file"])
    cluster = read_cluster(name, path)
    call.out.object(
        {
            "file": name,
            "path": path,
            "nodes": [node_as_json(node) for node in cluster.nodes],
            "adapter_slots": cluster.adapter_slots,
        }
    )
    call.out.line(render_cluster(cluster))
    return 0


# `stoker cluster place`: where a manifest's jobs would be placed. Nothing is started.

_MOST_NAMED = 8

CLUSTER_PLACE_GRAMMAR = Grammar(
    "cluster place",
    about=(
        "Show where the jobs of a manifest would be placed if all were submitted now, by priority, then in the order "
        "of the file; each trial of a sweep counts. The machines come from a cluster file: --cluster, else "
        f"{NAMES[0]} in this folder, else {VARIABLE}; without one, this machine as detected. For this machine the "
        "smaller of declared and detected capacity counts, less current reservations. Nothing is started. Exit code "
        "1 if a job would wait or fits nowhere."
    ),
    positionals=(Positional("FILE", help="a manifest with jobs, and policies of hosts"),),
    options=(
        Option("--cluster", value="FILE", help="cluster file with the machines"),
        Option("--explain", help="show each machine and device with its score or the reason against it"),
        Option("--no-cost-rule", help="ignore the cost rule for jobs that prefer a device"),
    ),
    examples=(
        "stoker cluster place jobs.toml",
        "stoker cluster place jobs.toml --cluster lab.yaml --explain",
        "stoker cluster place jobs.toml --json",
    ),
)


def perform_cluster_place(call: CommandContext, given: dict[str, Any]) -> int:
    """Read the files, place the jobs, print the result."""
    label, declared, is_file = _declared(call, given["cluster"] or "")
    known = KnownNames(hosts=frozenset(node.name for node in declared.nodes))
    manifest = read_manifest(given["file"], call.path(given["file"]), known)
    cluster = overlaid(declared, manifest.hosts)
    offers = _offers(call, cluster)
    wanted = [PlacementRequest(job=job.wanted(), count=trials_of(job)) for job in manifest.jobs]
    cost = None if given["no_cost_rule"] else COST_RULE
    planned = plan_jobs(wanted, offers, cost=cost, explains_all=given["explain"])
    _show(call, planned, offers, explains=given["explain"])
    placed = sum(len(one.placed) for one in planned)
    count = sum(one.wanted.count for one in planned)
    totals = {
        "machines": len(cluster.nodes),
        "adapter_slots": cluster.adapter_slots,
        "slots": sum(offer.slots for offer in offers),
        "jobs": count,
        "placed": placed,
        "waiting": count - placed,
        "is_fake": any(offer.is_fake for offer in offers),
    }
    call.out.object(totals)
    machines = f"{counted(len(offers), 'machine')}, " if is_file else ""
    call.out.line(
        f"{placed} of {counted(count, 'job')} placed. {label}: {machines}{counted(totals['slots'], 'job')} at once"
    )
    _note_unchecked(call, wanted, offers)
    return 0 if placed == count else 1


def trials_of(job: JobEntry) -> int:
    """Count the trials of a job's sweep, duplicates included; one without a sweep."""
    if not job.sweep:
        return 1
    sweep, faults = read_sweep(dict(job.sweep), lambda _place: ValueOrigin(ConfigLayer.FILE, job.name))
    # Its errors were reported with the file's.
    return 1 if sweep is None or faults else size(sweep)


def _declared(call: CommandContext, typed: str) -> tuple[str, Cluster, bool]:
    """Return a label, the machines, and whether they come from a file; without a file, this machine."""
    settings = call.parts.settings
    is_here = any(os.path.exists(os.path.join(settings.folder, name)) for name in NAMES)
    if typed or is_here or settings.environment.get(VARIABLE):
        name, path = choose_cluster(call, typed)
        return name, read_cluster(name, path), True
    capability = call.parts.capability
    label = f"this machine{' (faked devices)' if capability.is_fake else ''}"
    return label, Cluster(nodes=(node_of(capability),)), False


def _offers(call: CommandContext, cluster: Cluster) -> list[NodeOffer]:
    mine, _ = host_name(call.parts.settings.environment)
    here = node_name(mine)
    return [_here(call, node) if node.name == here else offer_of(node) for node in cluster.nodes]


def _here(call: CommandContext, node: Node) -> NodeOffer:
    """Return this machine's offer: the smaller of declared and detected, less the ledger's reservations."""
    agreed = agree(node, call.parts.capability)
    for one in agreed.drift:
        call.out.note(f"{node.name}: {one.message}")
    candidates = [one for one in map(CandidateDevice.of, call.parts.capability.devices) if one is not None]
    if not candidates:
        return agreed.offer
    return with_holders(agreed.offer, call.parts.ledger.state(candidates).devices)


def _show(
    call: CommandContext, planned: Sequence[PlannedPlacements], offers: Sequence[NodeOffer], *, explains: bool
) -> None:
    out = call.out
    signs = out.signs
    types = {device.uuid: device.type for offer in offers for device in offer.devices}
    for one in planned:
        if out.is_json:
            # One row per machine and job is costly, so made only if printed.
            out.object(_planned_as_json(one))
        out.line(job_line(one, signs, types))
        if one.explanation is not None:
            for line in why_lines(one.explanation, is_waiting=one.waiting > 0):
                out.line(f"    {line}")
            if explains:
                out.lines(explain_lines(one.explanation, columns=out.columns))


def _note_unchecked(call: CommandContext, wanted: Sequence[PlacementRequest], offers: Sequence[NodeOffer]) -> None:
    """Note the machines whose RAM or cores are undeclared, if a job requires more than the default."""
    requirements = [one.job.requirements for one in wanted]
    unknown = {
        "RAM (ram_mb)": [one.node for one in offers if one.ram_bytes is None]
        if any(one.ram_bytes > DEFAULT_RAM_BYTES for one in requirements)
        else [],
        "cores (cpu_cores)": [one.node for one in offers if one.cores is None]
        if any(one.cores for one in requirements)
        else [],
    }
    for what, nodes in unknown.items():
        if nodes:
            more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
            call.out.note(f"note: not declared, not checked: {what} of {', '.join(nodes[:_MOST_NAMED])}{more}")


def _planned_as_json(planned: PlannedPlacements) -> dict[str, Any]:
    return {
        "job": planned.wanted.job.name,
        "count": planned.wanted.count,
        "placed": [
            {"node": one.node, "devices": list(one.devices), "is_shared": one.is_shared, "score": one.score}
            for one in planned.placed
        ],
        "waiting": planned.waiting,
        "explanation": None if planned.explanation is None else planned.explanation.to_dict(),
    }
