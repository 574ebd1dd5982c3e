"""`stoker machines`: list, show, drain, cordon, pause, open, forget, invite and export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.admin import PEOPLE, role_of_people
from stoker.cli.completion_words import remember
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration
from stoker.config.cluster_file import node_as_json, write_cluster
from stoker.core.capability import Capability
from stoker.core.device import Device
from stoker.core.errors import BadInput, LocalFile, NotFound, StokerError, Usage
from stoker.core.leases import Role
from stoker.core.machine import Cluster
from stoker.core.text import counted, format_duration, format_size
from stoker.devices.checkup import faked_by
from stoker.devices.this_machine import submitter_name
from stoker.host.durable import create_file, write_file
from stoker.scheduler.offers import node_of
from stoker.views.device_lines import devices_text, ram_text
from stoker.views.fleet_lines import MACHINE_HEADER, machine_lines, machine_row
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import DoneView, MachineRequest, MachineView

# Arguments of drain, cordon, pause, open and forget.

MACHINE = Positional("NAME", help="a machine's name, from `stoker machines`", completes="machine")
DEVICE = Option("--device", value="UUID", help="only this device; may be repeated", is_many=True)
WHY = Option("--why", value="TEXT", help="reason, shown by status and explain")
FOR = Option("--for", value="TIME", read=duration, help="duration, such as 30m or 2h (default: until opened)")
OPTIONS = (WHY, FOR, AT)


def change_machine(call: CommandContext, given: dict[str, Any], verb: str, *, effect: str) -> int:
    """Send the request and print its effect."""
    from stoker.protocol.view_messages import MachineRequest

    for_s = given.get("for")
    request = MachineRequest(
        devices=tuple(given.get("device") or ()),
        why=given.get("why") or "",
        for_s=for_s,
        is_forced=given.get("force") or False,
        by=submitter_name(call.parts.settings.environment),
    )
    client, name = call.lookup.client(given["at"]), given["name"]
    done = _forget(client, name, request) if verb == "forget" else client.change_machine(name, verb, request)
    span = f" for {format_duration(for_s)}" if for_s else ""
    what = f"{name} ({', '.join(request.devices)})" if request.devices else name
    call.out.object({"machine": name, **request.model_dump(mode="json"), **done.model_dump(mode="json")})
    if done.changed:
        # A note replaces the second half of the text.
        does = effect.partition(":")[0] if done.notes else effect
        call.out.line(f"{what} {does}{span}{f': {request.why}' if request.why else ''}")
    for note in done.notes:
        call.out.note(f"note: {note}" if done.changed else note)
    return 0


# `stoker machines cordon`: start no jobs on a machine or on some of its devices.

CORDON_GRAMMAR = Grammar(
    "machines cordon",
    about="Start no more jobs on a machine, or on some of its devices, because of a fault. Running jobs finish.",
    positionals=(MACHINE,),
    options=(DEVICE, *OPTIONS),
    examples=("stoker machines cordon lab1", "stoker machines cordon lab1 --device GPU-8f1c --why 'ECC errors'"),
)


def perform_cordon(call: CommandContext, given: dict[str, Any]) -> int:
    """Cordon a machine."""
    return change_machine(call, given, "cordon", effect="is cordoned: no jobs start there")


# `stoker machines drain`: running jobs finish, no more start.

DRAIN_GRAMMAR = Grammar(
    "machines drain",
    about="Start no more jobs on a machine, for an update or a restart. Running jobs finish.",
    positionals=(MACHINE,),
    options=OPTIONS,
    examples=("stoker machines drain lab1", "stoker machines drain lab1 --why 'new driver' --for 2h"),
)


def perform_drain(call: CommandContext, given: dict[str, Any]) -> int:
    """Drain a machine."""
    return change_machine(call, given, "drain", effect="is drained: running jobs finish, no more start")


# `stoker machines pause`: running jobs return to the queue.

PAUSE_GRAMMAR = Grammar(
    "machines pause",
    about=(
        "Start no more jobs on a machine, and return those that run to the queue, from their last checkpoint. On the "
        "machine itself `stoker pause` does the same."
    ),
    positionals=(MACHINE,),
    options=OPTIONS,
    examples=("stoker machines pause lab1", "stoker machines pause lab1 --why 'games tonight' --for 2h"),
)


def perform_pause(call: CommandContext, given: dict[str, Any]) -> int:
    """Pause a machine."""
    return change_machine(call, given, "pause", effect="is paused: running jobs return to the queue, no more start")


# `stoker machines open`: undo drain, cordon and pause.

OPEN_GRAMMAR = Grammar(
    "machines open",
    about="Start jobs again on a drained, cordoned or paused machine, or on some of its devices.",
    positionals=(MACHINE,),
    options=(DEVICE, AT),
    examples=("stoker machines open lab1", "stoker machines open lab1 --device GPU-8f1c"),
)


def perform_open(call: CommandContext, given: dict[str, Any]) -> int:
    """Open a machine."""
    return change_machine(call, given, "open", effect="is open: jobs may start")


# `stoker machines forget`: remove a machine from the fleet, with its certificate.

FORGET_GRAMMAR = Grammar(
    "machines forget",
    about=(
        "Remove a machine from the fleet. The certificate of a machine that joined with a code is revoked immediately: "
        "its requests are rejected, and its jobs return to the queue; to return, it needs a new invitation. A machine "
        "on the coordinator's own host has no certificate: removing it is refused while it holds jobs, and while its "
        "worker runs, because it would join again."
    ),
    positionals=(MACHINE,),
    options=(Option("--force", help="also while its worker runs"), AT),
    examples=("stoker machines forget old-laptop", "stoker machines forget --force desk"),
)


def perform_forget(call: CommandContext, given: dict[str, Any]) -> int:
    """Remove a machine."""
    return change_machine(call, given, "forget", effect="is removed")


def _forget(client: FleetClient, name: str, request: MachineRequest) -> DoneView:
    from stoker.views.fleet_lines import day

    held = [one for one in client.certificates() if one.name == name and one.revoked_s is None]
    done = client.change_machine(name, "forget", request)
    notes = [f"certificate {one.serial[:12]} (valid until {day(one.expires_s)}) is revoked" for one in held]
    return done.model_copy(update={"notes": (*done.notes, *notes), "data": {**done.data, "revoked": len(held)}})


_LIFE_S = 900.0

INVITE_GRAMMAR = Grammar(
    "machines invite",
    about=(
        "Create a code with which one machine joins the fleet, and print the command to run there. It works once. It "
        "also authenticates this coordinator to the machine, so keep it secret. With --operator it is for a user, who "
        "gets a token. --withdraw makes an unused code invalid."
    ),
    options=(
        Option("--operator", help="invite a user, who submits and operates from another computer"),
        Option(
            "--role",
            value="ROLE",
            read=role_of_people,
            help=f"role of the user: {', '.join(PEOPLE)} (default: operate)",
            completes=PEOPLE,
        ),
        Option("--name", value="NAME", help="the only name allowed (default: any free name)"),
        Option("--for", value="TIME", read=duration, help="lifetime of the code (default: 15m)"),
        Option("--withdraw", value="ID", help="withdraw an unused code by its first part (K7QD of K7QD-M2XW-9HCE)"),
        AT,
    ),
    examples=(
        "stoker machines invite",
        "stoker machines invite --name lab1 --for 1h",
        "stoker machines invite --operator --role submit --name anna",
        "stoker machines invite --withdraw K7QD",
    ),
)


def perform_invite(call: CommandContext, given: dict[str, Any]) -> int:
    """Create or withdraw an invitation."""
    from stoker.protocol.enrolment_messages import InviteRequest
    from stoker.views.fleet_lines import invited_lines, join_lines

    if given["withdraw"] is not None:
        return _withdraw(call, given)
    if given["role"] is not None and not given["operator"]:
        raise Usage("--role needs --operator", hint="stoker machines invite --operator --role submit")
    role = (given["role"] or Role.OPERATE) if given["operator"] else Role.WORKER
    client = call.lookup.client(given["at"])
    if not client.url.startswith("https://"):
        raise BadInput(
            f"the coordinator at {client.url} serves only its own machine",
            hint="serve other machines with TLS: stoker serve --listen 0.0.0.0",
        )
    invited = client.invite(InviteRequest(role=role, name=given["name"] or "", life_s=given["for"] or _LIFE_S))
    call.out.object({**invited.model_dump(mode="json"), "commands": join_lines(invited)})
    call.out.lines(invited_lines(invited, now_s=call.parts.clock.wall_s()))
    return 0


def _withdraw(call: CommandContext, given: dict[str, Any]) -> int:
    """Withdraw an invitation; return 1 if its code was not valid any more."""
    if given["operator"] or given["role"] or given["name"] or given["for"]:
        raise Usage("--withdraw excludes the options of a new code", hint="stoker machines invite --withdraw K7QD")
    invite = given["withdraw"].partition("-")[0].upper()
    done = call.lookup.client(given["at"]).withdraw_invite(invite)
    call.out.object({"id": invite, "withdrawn": bool(done.changed)})
    call.out.lines([*(f"{one}: withdrawn" for one in done.changed), *done.notes])
    return 0 if done.changed else 1


# `stoker machines`: this machine and those of the fleet.

LISTING_GRAMMAR = Grammar(
    "machines",
    about=(
        "List this machine with its cores, memory and devices; and, with a coordinator, the machines of the fleet with "
        "their jobs and state."
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
    """List machines."""
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
    remember(call.parts.settings.state, "machines", (one.name for one in machines), is_all=True)
    for machine in machines:
        out.object({**machine.model_dump(mode="json"), "is_here": False})
    out.line(f"\nfleet of {client.url}" + ("" if machines else ": no machines"))
    if machines:
        out.table([machine_row(one, now_s) for one in machines], header=MACHINE_HEADER)
    else:
        is_local = client.url.startswith("http://")
        out.note(f"hint: stoker {f'work --join {client.url}' if is_local else 'machines invite'}")


def _row(capability: Capability) -> list[str]:
    usable = capability.usable_devices
    others = len(capability.devices) - len(usable)
    devices = [devices_text(usable)] if usable else ["none: CPU only"]
    devices += [f"{others} not usable"] if others else []
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
    about=(
        "Show the detected properties of a machine, each with its source, and the present state of its devices: "
        "utilisation, memory, power, temperature, the last hour, alerts. With --json, one object with all of it."
    ),
    positionals=(
        Positional("NAME", help="machine name (default: this machine)", is_required=False, completes="machine"),
    ),
    options=(AT,),
    examples=("stoker machines show", "stoker machines show lab1", "stoker machines show --json"),
)


def perform_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a machine."""
    out = call.out
    capability = call.parts.capability
    name = given["name"]
    if name and (given["at"] or name != capability.hostname):
        return _show_of_fleet(call, name, given["at"])
    label = faked_by(capability)
    if out.is_json:
        from stoker.api.local_telemetry import LocalTelemetryReader
        from stoker.api.monitor import SpanQuery

        measured = LocalTelemetryReader(call.parts, capability.hostname).view(SpanQuery()).model_dump(mode="json")
        out.object({**capability.to_dict(), "label": label, "telemetry": measured})
    out.line(f"{capability.hostname}{f' ({label})' if label else ''}")
    rows = _facts(capability)
    out.lines(table(rows, header=("", "", "source"), indent="  "))
    for one in capability.devices:
        out.line(f"\n{one.name} ({one.backend}{', faked' if one.is_fake else ''})")
        out.lines(table(_device_facts(one), indent="  "))
    for finding in capability.findings:
        out.line(f"\n{finding.code}: {finding.message}{f' (hint: {finding.hint})' if finding.hint else ''}")
    if not out.is_json:
        out.lines(["", *local_lines(call)])
    return 0


def _show_of_fleet(call: CommandContext, name: str, at: str | None) -> int:
    """Show a machine of the fleet."""
    client = call.client_if_any(at)
    if client is None:
        if call.incomplete is not None:
            raise call.incomplete
        here = call.parts.capability.hostname
        raise NotFound(f"no machine {name!r}", hint=f"this machine is {here}; list machines: stoker machines")
    machine, out = client.machine(name), call.out
    if out.is_json:
        out.object({**machine.model_dump(mode="json"), "is_here": False, "telemetry": _telemetry_json(client, name)})
    out.lines(machine_lines(machine, call.parts.clock.wall_s()))
    if not out.is_json:
        out.lines(fleet_lines(call, client, machine))
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


# `stoker machines export`: write a cluster file for this machine.

EXPORT_GRAMMAR = Grammar(
    "machines export",
    about=(
        "Write a cluster file for this machine: cores, memory, and each device by UUID. Check it with `stoker check`."
    ),
    options=(
        Option("--out", value="FILE", help="output file (default: standard output)"),
        Option("--force", help="overwrite an existing file"),
    ),
    examples=("stoker machines export", "stoker machines export --out cluster.yaml"),
)


def perform_export(call: CommandContext, given: dict[str, Any]) -> int:
    """Write a cluster file."""
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
        devices = counted(len(node.gpus), "device")
        out.line(f"{node.name} with {devices} in {path}{f' ({label})' if label else ''}")
    unknown = [one.name for one in capability.devices if one.uuid not in {gpu.uuid for gpu in node.gpus}]
    if unknown:
        out.note(f"omitted, memory size unknown: {', '.join(unknown)}")
    return 0


def _write(path: str, text: str, *, force: bool) -> None:
    if force:
        write_file(path, text.encode())
    elif not create_file(path, text.encode()):
        raise LocalFile(f"{path} already exists", hint="choose another name, or overwrite it with --force", path=path)


# Telemetry, as `machines show` prints it.


def _telemetry_json(client: FleetClient, name: str) -> dict[str, Any] | None:
    """Return the telemetry of a machine of the fleet; None if its coordinator is of an earlier version."""
    try:
        return client.telemetry(name).model_dump(mode="json")
    except NotFound:
        return None


def local_lines(call: CommandContext) -> list[str]:
    """Return the present state of this machine's devices, and what a worker here recorded."""
    from stoker.devices.telemetry.alerts import alerts_now
    from stoker.devices.telemetry.local import SPAN_S, look_here
    from stoker.views.telemetry_lines import HOST_NAME, ShownDevice, alert_lines, curves_of, telemetry_lines

    parts, out = call.parts, call.out
    devices = parts.capability.devices
    names = {one.uuid: one.name or one.uuid for one in devices}
    found = look_here(devices, parts.settings.environment, parts.settings.state, clock=parts.clock)
    shown = [
        ShownDevice(name=names.get(one.uuid) or HOST_NAME, now=one, curves=curves_of(found.rows.get(one.uuid, ())))
        for one in found.samples
    ]
    alerts = alerts_now(found.samples, _reserved(call) if devices else {}, parts.clock.monotonic_s())
    lines = telemetry_lines(shown, span_s=SPAN_S, columns=out.columns, is_ascii=not out.is_unicode)
    return [*lines, *(["", *alert_lines(alerts, names)] if alerts else [])]


def fleet_lines(call: CommandContext, client: FleetClient, machine: MachineView) -> list[str]:
    """Return the telemetry of a machine of the fleet; nothing if its coordinator, or its worker, has none."""
    from stoker.views.telemetry_lines import alert_lines, shown_devices, telemetry_lines

    try:
        view = client.telemetry(machine.name)
    except NotFound:
        # A coordinator of an earlier version.
        return []
    names = {str(one.get("uuid", "")): str(one.get("name") or "") for one in machine.devices}
    out = call.out
    lines = telemetry_lines(
        shown_devices(view, names), span_s=view.to_s - view.from_s, columns=out.columns, is_ascii=not out.is_unicode
    )
    shown = [*([""] if lines else []), *lines]
    return [*shown, *(["", *alert_lines(view.alerts, names)] if view.alerts else [])]


def _reserved(call: CommandContext) -> Mapping[str, int]:
    try:
        return call.parts.ledger.reserved()
    except StokerError:
        return {}
