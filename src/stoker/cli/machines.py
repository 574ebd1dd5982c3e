"""`stoker machines invite`: a code by which a machine, or a person, joins the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.cli.admin import PEOPLE, role_of_people
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration
from stoker.config.cluster_file import node_as_json, write_cluster
from stoker.core.capability import Capability
from stoker.core.device import Device
from stoker.core.errors import BadInput, LocalFile, NotFound, Usage
from stoker.core.leases import Role
from stoker.core.machine import Cluster
from stoker.core.text import format_duration, format_size
from stoker.devices.checkup import faked_by
from stoker.host.durable import create_file, write_file
from stoker.jobs.submitter import who_asks
from stoker.scheduler.offers import node_of
from stoker.views.device_lines import devices_text, ram_text
from stoker.views.fleet_lines import MACHINE_HEADER, machine_lines, machine_row
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import DoneView, MachineRequest


# What drain, cordon, open and forget have in common: which machine, which devices, why and for how long.

MACHINE = Positional("NAME", help="a machine, as `stoker machines` lists it")
DEVICE = Option("--device", value="UUID", help="only this device; may be given again", is_many=True)
WHY = Option("--why", value="TEXT", help="told to everybody who asks")
FOR = Option("--for", value="TIME", read=duration, help="until then: 30m, 2h; until opened unless told")
OPTIONS = (WHY, FOR, AT)


def close_or_open(call: CommandContext, given: dict[str, Any], act: Callable[..., DoneView], *, said: str) -> int:
    """Ask for it and say what it did."""
    from stoker.protocol.view_messages import MachineRequest

    for_s = given.get("for")
    asked = MachineRequest(
        devices=tuple(given.get("device") or ()),
        why=given.get("why") or "",
        for_s=for_s,
        is_forced=given.get("force") or False,
        by=who_asks(call.parts.settings.environment),
    )
    done = act(call.lookup.client(given["at"]), given["name"], asked)
    span = f" for {format_duration(for_s)}" if for_s else ""
    what = f"{given['name']} ({', '.join(asked.devices)})" if asked.devices else given["name"]
    call.out.object({"machine": given["name"], **asked.model_dump(mode="json"), **done.model_dump(mode="json")})
    if done.changed:
        # What a note says counts more than what may follow from it.
        does = said.partition(":")[0] if done.notes else said
        call.out.line(f"{what} {does}{span}{f': {asked.why}' if asked.why else ''}")
    for note in done.notes:
        call.out.note(f"note: {note}" if done.changed else note)
    return 0


# `stoker machines cordon`: a machine, or one of its devices, that is mistrusted gets no more work.

CORDON_GRAMMAR = Grammar(
    "machines cordon",
    about="Give a machine, or only some of its devices, no more work: it is mistrusted. What runs there finishes.",
    positionals=(MACHINE,),
    options=(DEVICE, *OPTIONS),
    examples=("stoker machines cordon lab1", "stoker machines cordon lab1 --device GPU-8f1c --why 'ECC errors'"),
)


def perform_cordon(call: CommandContext, given: dict[str, Any]) -> int:
    """Cordon it."""
    return close_or_open(call, given, lambda client, *to: client.cordon(*to), said="is cordoned: nothing more comes")


# `stoker machines drain`: what runs on a machine finishes, and it gets no more.

DRAIN_GRAMMAR = Grammar(
    "machines drain",
    about="Give a machine of the fleet no more work; what runs there finishes. For an update, a restart, a holiday.",
    positionals=(MACHINE,),
    options=OPTIONS,
    examples=("stoker machines drain lab1", "stoker machines drain lab1 --why 'new driver' --for 2h"),
)


def perform_drain(call: CommandContext, given: dict[str, Any]) -> int:
    """Drain it."""
    return close_or_open(
        call,
        given,
        lambda client, *to: client.drain(*to),
        said="is drained: what runs there finishes, nothing more comes",
    )


# `stoker machines open`: a machine that was drained, cordoned or paused gets work again.

OPEN_GRAMMAR = Grammar(
    "machines open",
    about="Let a machine have work again that was drained, cordoned or paused; or some of its devices.",
    positionals=(MACHINE,),
    options=(DEVICE, AT),
    examples=("stoker machines open lab1", "stoker machines open lab1 --device GPU-8f1c"),
)


def perform_open(call: CommandContext, given: dict[str, Any]) -> int:
    """Open it."""
    return close_or_open(call, given, lambda client, *to: client.open(*to), said="is open: jobs may come")


# `stoker machines forget`: remove a machine from the fleet, with its certificate.

FORGET_GRAMMAR = Grammar(
    "machines forget",
    about=(
        "Remove a machine that is not to come back. One that joined by a code loses its certificate at once: its next "
        "word is refused, and the jobs that it holds go back to the queue; to return it has to be invited again. One "
        "on the coordinator's own machine has none: it is refused while it holds jobs, and while its worker runs, "
        "which would join again, open."
    ),
    positionals=(MACHINE,),
    options=(Option("--force", help="although its worker runs"), AT),
    examples=("stoker machines forget old-laptop", "stoker machines forget --force desk"),
)


def perform_forget(call: CommandContext, given: dict[str, Any]) -> int:
    """Forget it."""
    return close_or_open(call, given, _forget, said="is forgotten")


def _forget(client: FleetClient, name: str, asked: MachineRequest) -> DoneView:
    from stoker.views.fleet_lines import day

    held = [one for one in client.certificates() if one.name == name and one.revoked_s is None]
    done = client.forget(name, asked)
    notes = [f"its certificate ({one.serial[:12]}, until {day(one.expires_s)}) is revoked" for one in held]
    return done.model_copy(update={"notes": (*done.notes, *notes), "data": {**done.data, "revoked": len(held)}})


_LIFE_S = 900.0

INVITE_GRAMMAR = Grammar(
    "machines invite",
    about=(
        "Make a code by which one machine joins the fleet, and print the exact command to type there. It works once "
        "and not for long. It is also how the other side knows this coordinator from a stranger: pass it on so that "
        "nobody else reads it. With --operator it is for a person, who gets a token."
    ),
    options=(
        Option("--operator", help="for a person: they submit and operate from their own computer"),
        Option(
            "--role",
            value="ROLE",
            read=role_of_people,
            help=f"what that person may: {', '.join(PEOPLE)}; operate unless told",
        ),
        Option("--name", value="NAME", help="the only name under which it may join; any that is free unless told"),
        Option("--for", value="TIME", read=duration, help="how long the code works; 15m unless told"),
        AT,
    ),
    examples=(
        "stoker machines invite",
        "stoker machines invite --name lab1 --for 1h",
        "stoker machines invite --operator --role submit --name anna",
    ),
)


def perform_invite(call: CommandContext, given: dict[str, Any]) -> int:
    """Invite."""
    from stoker.protocol.enrolment_messages import InviteRequest
    from stoker.views.fleet_lines import invited_lines, join_lines

    if given["role"] is not None and not given["operator"]:
        raise Usage("--role is for people", hint="stoker machines invite --operator --role submit")
    role = (given["role"] or Role.OPERATE) if given["operator"] else Role.WORKER
    client = call.lookup.client(given["at"])
    if not client.url.startswith("https://"):
        raise BadInput(
            f"the coordinator at {client.url} serves its own machine alone: nobody else can join it",
            hint="start it so that others reach it, with TLS of its own: stoker serve --listen 0.0.0.0",
        )
    invited = client.invite(InviteRequest(role=role, name=given["name"] or "", life_s=given["for"] or _LIFE_S))
    call.out.object({**invited.model_dump(mode="json"), "commands": join_lines(invited)})
    call.out.lines(invited_lines(invited, now_s=call.parts.clock.wall_s()))
    return 0


# `stoker machines show`: one machine's whole capability, and where each fact came from.

# `stoker machines`: the machines that Stoker knows: this one, and beside it those of the fleet.

LISTING_GRAMMAR = Grammar(
    "machines",
    about=(
        "List the machines that Stoker knows: this one with its cores, memory, devices and what is free; and, where "
        "there is a coordinator, those of its fleet with what they hold and whether they take jobs."
    ),
    options=(AT,),
    examples=(
        "stoker machines",
        "stoker machines show",
        "stoker machines drain lab1 --for 2h",
        "stoker machines export --out cluster.yaml",
    ),
)


def perform_listing(call: CommandContext, given: dict[str, Any]) -> int:
    """List them."""
    out = call.out
    client = call.client_if_any(given["at"])
    capability = call.parts.capability
    about = {"name": capability.hostname, "is_here": True, "label": faked_by(capability)}
    out.object({**capability.to_dict(), **about})
    out.table([_row(capability)], header=("machine", "cores", "RAM", "recipes", "devices"))
    if client is not None:
        _list_fleet(call, client)
    return 0


def _list_fleet(call: CommandContext, client: FleetClient) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    machines = client.machines()
    for machine in machines:
        out.object({**machine.model_dump(mode="json"), "is_here": False})
    out.line(f"\nfleet of {client.url}" + ("" if machines else ": no machine belongs to it"))
    if machines:
        out.table([machine_row(one, now_s) for one in machines], header=MACHINE_HEADER)
    else:
        is_local = client.url.startswith("http://")
        out.note(f"hint: stoker {f'work --join {client.url}' if is_local else 'machines invite'}")


def _row(capability: Capability) -> list[str]:
    usable = capability.usable_devices
    others = len(capability.devices) - len(usable)
    devices = [devices_text(usable)] if usable else ["none: CPU only"]
    devices += [f"{others} that can't be used"] if others else []
    label = faked_by(capability)
    return [
        capability.hostname,
        str(capability.cpu_cores),
        ram_text(capability),
        str(len(capability.recipes)),
        "; ".join(devices) + (f" ({label})" if label else ""),
    ]


SHOW_GRAMMAR = Grammar(
    "machines show",
    about="Show everything that was found out about a machine, and who said it. With --json it is one object.",
    positionals=(Positional("NAME", help="which machine; this one unless told", is_required=False),),
    options=(AT,),
    examples=("stoker machines show", "stoker machines show lab1", "stoker machines show --json"),
)


def perform_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show it."""
    out = call.out
    capability = call.parts.capability
    name = given["name"]
    if name and (given["at"] or name != capability.hostname):
        return _show_of_fleet(call, name, given["at"])
    label = faked_by(capability)
    out.object({**capability.to_dict(), "label": label})
    out.line(f"{capability.hostname}{f' ({label})' if label else ''}")
    rows = _facts(capability)
    out.lines(table(rows, header=("", "", "said by"), indent="  "))
    for one in capability.devices:
        out.line(f"\n{one.name} ({one.backend}{', faked' if one.is_fake else ''})")
        out.lines(table(_device_facts(one), indent="  "))
    for finding in capability.findings:
        out.line(f"\n{finding.code}: {finding.message}{f' (hint: {finding.hint})' if finding.hint else ''}")
    return 0


def _show_of_fleet(call: CommandContext, name: str, at: str | None) -> int:
    """Show a machine of the fleet."""
    client = call.client_if_any(at)
    if client is None:
        if call.incomplete is not None:
            raise call.incomplete
        here = call.parts.capability.hostname
        raise NotFound(f"there is no machine {name!r}", hint=f"this one is {here}; `stoker machines` lists")
    machine, out = client.machine(name), call.out
    out.object({**machine.model_dump(mode="json"), "is_here": False})
    out.lines(machine_lines(machine, call.parts.clock.wall_s()))
    return 0


def _facts(capability: Capability) -> list[list[str]]:
    sources = capability.sources

    def by(field: str) -> str:
        return sources.get(field, "")

    rows = [
        ["name", capability.hostname, by("hostname")],
        ["system", f"{capability.os} {capability.arch}", by("os")],
        ["cpu", capability.cpu_name or "unknown", by("cpu_name")],
        ["cores", f"{capability.cpu_cores} ({capability.cpu_threads} threads)", by("cpu_cores")],
        ["RAM", ram_text(capability), by("ram")],
        ["commit", capability.training_commit or "none", by("training_commit")],
    ]
    rows += [
        [str(backend), version or "yes", by(str(backend)) or "implied"]
        for backend, version in capability.backends.items()
    ]
    for one in capability.interpreters:
        torch = f"torch {one.torch}{f' for {one.torch_cuda}' if one.torch_cuda else ''}" if one.torch else "no torch"
        rows.append([f"python {one.version}", f"{one.path}, {torch}", by("interpreters")])
    rows.append(["recipes", str(len(capability.recipes)), by("recipes")])
    rows.append(["digest", str(capability.digest)[:12], ""])
    return rows


def _device_facts(one: Device) -> list[list[str]]:
    shown = {
        "uuid": one.uuid,
        "index": "" if one.index is None else str(one.index),
        "memory_type": str(one.memory_type),
        "total_bytes": "" if one.total_bytes is None else format_size(one.total_bytes),
        "free_bytes": "" if one.free_bytes is None else format_size(one.free_bytes),
        "driver": one.driver,
        "capability": one.capability,
        "pci": one.pci,
        **{
            name: f"{answer.verdict}{f': {answer.why}' if answer.why else ''}"
            for name, answer in (("installed", one.installed), ("visible", one.visible), ("usable", one.usable))
        },
    }
    return [
        [field.removesuffix("_bytes"), value or "unknown", one.sources.get(field, "")] for field, value in shown.items()
    ]


# `stoker machines export`: a cluster file for this machine, its devices by UUID.

EXPORT_GRAMMAR = Grammar(
    "machines export",
    about=(
        "Write a cluster file for this machine: cores, memory, every device by UUID. To standard output, unless --out "
        "names a file. `stoker check` reads it back."
    ),
    options=(
        Option("--out", value="FILE", help="write it there instead of to standard output"),
        Option("--force", help="replace what is there"),
    ),
    examples=("stoker machines export", "stoker machines export --out cluster.yaml"),
)


def perform_export(call: CommandContext, given: dict[str, Any]) -> int:
    """Write it."""
    out = call.out
    capability = call.parts.capability
    node = node_of(capability)
    label = faked_by(capability)
    text = f"# {label}\n" if label else ""
    text += write_cluster(Cluster(nodes=(node,)))
    path = call.path(given["out"]) if given["out"] else ""
    if path:
        _write(path, text, force=given["force"])
    out.object({"path": path or None, "nodes": [node_as_json(node)], "is_fake": capability.is_fake, "text": text})
    if not path:
        out.line(text.rstrip("\n"))
    elif not out.is_quiet:
        devices = "1 device" if len(node.gpus) == 1 else f"{len(node.gpus)} devices"
        out.line(f"{node.name} with {devices} in {path}{f' ({label})' if label else ''}")
    unknown = [one.name for one in capability.devices if one.uuid not in {gpu.uuid for gpu in node.gpus}]
    if unknown:
        out.note(f"left out, their memory is unknown: {', '.join(unknown)}")
    return 0


def _write(path: str, text: str, *, force: bool) -> None:
    if force:
        write_file(path, text.encode())
    elif not create_file(path, text.encode()):
        raise LocalFile(f"{path} is there already", hint="choose another name, or replace it with --force", path=path)
