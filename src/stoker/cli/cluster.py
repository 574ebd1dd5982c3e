"""Which cluster file is meant: the one that is named, the one that lies here, or the one that the environment names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.cli.check import DeclaredFileCheck, tell_declared
from stoker.cli.commands import verbs_of
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, instead
from stoker.config.cluster_file import node_as_json, read_cluster, render_cluster
from stoker.config.config_file import SUFFIXES
from stoker.config.manifest_file import JobEntry, KnownNames, overlaid, read_manifest
from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import size
from stoker.config.sweep_file import read_sweep
from stoker.core.errors import LocalFile, Usage
from stoker.core.machine import DEFAULT_RAM_BYTES, Cluster, Node
from stoker.core.text import nearest
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
    help=f"a cluster file; unless told, {NAMES[0]} in this folder, else what {VARIABLE} names",
    is_required=False,
)


def choose_cluster(call: CommandContext, typed: str) -> tuple[str, str]:
    """Return the cluster file that is meant: as it was called, and its whole path. `typed` may be empty."""
    settings = call.parts.settings
    here = next((name for name in NAMES if os.path.exists(os.path.join(settings.folder, name))), "")
    chosen = typed or here or settings.environment.get(VARIABLE, "")
    if typed and not typed.endswith(SUFFIXES) and not os.path.exists(call.path(typed)):
        meant = nearest(typed, [verb.path[1] for verb in verbs_of("cluster")])
        near = f"did you mean `stoker cluster {meant}`?" if meant else f"a cluster file is {' or '.join(SUFFIXES)}"
        hint = instead("cluster", [typed]) or near
        raise Usage(f"`stoker cluster` does not know {typed!r}", hint=hint)
    if not chosen:
        hint = f"name one, set {VARIABLE}, or write one: stoker machines export --out {NAMES[0]}"
        raise LocalFile(f"there is no {NAMES[0]} in this folder", hint=hint, path=NAMES[0])
    return chosen, call.path(chosen)


# `stoker cluster check`: every fault of a cluster file, with its line.

CLUSTER_CHECK_GRAMMAR = Grammar(
    "cluster check",
    about=(
        "Check a cluster file: its values, its names and addresses, devices that stand in it twice. All faults are "
        "told at once, each with file, line, key and value. Exit code 23 if there are any."
    ),
    positionals=(FILE,),
    examples=("stoker cluster check", "stoker cluster check lab.yaml --json", "stoker check lab.yaml jobs.toml"),
)


def perform_cluster_check(call: CommandContext, given: dict[str, Any]) -> int:
    """Check it."""
    name, path = choose_cluster(call, given["file"])
    tell_declared(call, [DeclaredFileCheck.of(name, path, read_cluster)])
    return 0


# `stoker cluster show`: the machines of a cluster file, a line for each.

CLUSTER_SHOW_GRAMMAR = Grammar(
    "cluster",
    about=(
        "Show the machines of a cluster file: name, address, how it is reached, its devices, and how many jobs it "
        "takes at once."
    ),
    positionals=(FILE,),
    examples=("stoker cluster show", "stoker cluster show lab.yaml --json", "stoker cluster check lab.yaml"),
)


def perform_cluster_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show them."""
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


# `stoker cluster place`: where a manifest's jobs would go, and why not elsewhere. Nothing is started.

_MOST_NAMED = 8

CLUSTER_PLACE_GRAMMAR = Grammar(
    "cluster place",
    about=(
        "Say where the jobs of a manifest would go if they all came now, in the order of their priority, then of "
        f"the file; a sweep counts as its trials. The machines are those of a cluster file: --cluster, else {NAMES[0]} "
        f"in this folder, else what {VARIABLE} names; without any it is this machine as it was found. Of this machine "
        "the smaller of declared and found counts, less what is held now. Nothing is started. Exit code 1 if a job "
        "would have to wait, or fits nowhere."
    ),
    positionals=(Positional("FILE", help="a manifest: its jobs, and its hosts' policy"),),
    options=(
        Option("--cluster", value="FILE", help="the machines"),
        Option("--explain", help="every machine and device with its score, or what stands in the way"),
        Option("--no-cost-rule", help="let jobs that prefer a device have one, worth it or not"),
    ),
    examples=(
        "stoker cluster place jobs.toml",
        "stoker cluster place jobs.toml --cluster lab.yaml --explain",
        "stoker cluster place jobs.toml --json",
    ),
)


def perform_cluster_place(call: CommandContext, given: dict[str, Any]) -> int:
    """Read, place, tell."""
    label, declared, is_file = _declared(call, given["cluster"] or "")
    known = KnownNames(hosts=frozenset(node.name for node in declared.nodes))
    manifest = read_manifest(given["file"], call.path(given["file"]), known)
    cluster = overlaid(declared, manifest.hosts)
    offers = _offers(call, cluster)
    wanted = [PlacementRequest(job=job.wanted(), count=trials_of(job)) for job in manifest.jobs]
    cost = None if given["no_cost_rule"] else COST_RULE
    planned = plan_jobs(wanted, offers, cost=cost, explains_all=given["explain"])
    _tell(call, planned, offers, explains=given["explain"])
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
    machines = f"{_counted(len(offers), 'machine')}, " if is_file else ""
    call.out.line(
        f"{placed} of {_counted(count, 'job')} placed. {label}: {machines}{_counted(totals['slots'], 'job')} at once"
    )
    _tell_unchecked(call, wanted, offers)
    return 0 if placed == count else 1


def trials_of(job: JobEntry) -> int:
    """Count the trials of a job's sweep, duplicates included; one without a sweep."""
    if not job.sweep:
        return 1
    sweep, faults = read_sweep(dict(job.sweep), lambda _place: ValueOrigin(ConfigLayer.FILE, job.name))
    # Its faults were reported with the file's.
    return 1 if sweep is None or faults else size(sweep)


def _declared(call: CommandContext, typed: str) -> tuple[str, Cluster, bool]:
    """Return what to call the machines that are meant, them, and whether they are a file's; else it is this one."""
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
    """Give this machine as it is: the smaller of declared and found, less what the ledger says is held."""
    agreed = agree(node, call.parts.capability)
    for one in agreed.drift:
        call.out.note(f"{node.name}: {one.message}")
    candidates = [one for one in map(CandidateDevice.of, call.parts.capability.devices) if one is not None]
    if not candidates:
        return agreed.offer
    return with_holders(agreed.offer, call.parts.ledger.state(candidates).devices)


def _tell(
    call: CommandContext, planned: Sequence[PlannedPlacements], offers: Sequence[NodeOffer], *, explains: bool
) -> None:
    out = call.out
    signs = out.signs
    types = {device.uuid: device.type for offer in offers for device in offer.devices}
    for one in planned:
        if out.is_json:
            # A row for each machine, for each job: costly, so only where it is printed.
            out.object(_told(one))
        out.line(job_line(one, signs, types))
        if one.explanation is not None:
            for line in why_lines(one.explanation, is_waiting=one.waiting > 0):
                out.line(f"    {line}")
            if explains:
                out.lines(explain_lines(one.explanation, columns=out.columns))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _tell_unchecked(call: CommandContext, wanted: Sequence[PlacementRequest], offers: Sequence[NodeOffer]) -> None:
    """Note whose RAM or cores are not declared, and so were not checked, if a job requires more than usual."""
    asked = [one.job.requirements for one in wanted]
    unknown = {
        "RAM (ram_mb)": [one.node for one in offers if one.ram_bytes is None]
        if any(one.ram_bytes > DEFAULT_RAM_BYTES for one in asked)
        else [],
        "cores (cpu_cores)": [one.node for one in offers if one.cores is None]
        if any(one.cores for one in asked)
        else [],
    }
    for what, nodes in unknown.items():
        if nodes:
            more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
            call.out.note(f"note: not declared, so not checked: {what} of {', '.join(nodes[:_MOST_NAMED])}{more}")


def _told(planned: PlannedPlacements) -> dict[str, Any]:
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
