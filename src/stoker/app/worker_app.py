"""A worker: detect the machine, open connections, run the daemon."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from stoker.app.machine_parts import maker_of
from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.core.text import NODE_NAME_RULE, is_node_name
from stoker.devices.checkup import (
    Check,
    CheckStatus,
    check_devices,
    check_machine,
    check_recipes,
    check_surroundings,
    survey,
)
from stoker.devices.this_machine import host_name
from stoker.host.http.exchange import Transport, asked_directly
from stoker.host.identity import mine
from stoker.host.sockets import NotifySocket, for_children
from stoker.host.writers import reflink
from stoker.protocol.client import FleetClient
from stoker.protocol.discovery import OPERATOR_TOKEN
from stoker.protocol.lease_messages import Claim, ClaimResponse, MachineInventory
from stoker.protocol.operator_messages import DoctorFinding
from stoker.protocol.transport import RequestTimeouts
from stoker.worker.attempt_process import Worker
from stoker.worker.coordinator_calls import WorkerConnections
from stoker.worker.daemon import goes_with_us, keep
from stoker.worker.machine_checks import LocalMachine, MachineOffer
from stoker.worker.worker_options import within_allocation, workers_folder
from stoker.worker.worker_state import STOP_GRACE_S, WorkerPolicy

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts, AppSettings
    from stoker.core.capability import Capability
    from stoker.host.users import OtherUser
    from stoker.protocol.lease_messages import Grant
    from stoker.transfer.trees.tree_sources import TreeSourceFinder
    from stoker.worker.preparation.prepare_child import InputPreparer
    from stoker.worker.worker_options import WorkOptions


CoordinatorConnection = tuple[FleetClient, Transport]


class ClaimConnectionPool:
    """Connections for long polls, each of its own, so that cutting one cuts no other. Thread-safe.

    One that was answered serves the next question, too: over TLS a new connection costs more than the answer.
    """

    def __init__(self, open_line: Callable[[], CoordinatorConnection]) -> None:
        self._open_line = open_line
        self._lock = threading.Lock()
        self._spare: CoordinatorConnection | None = None

    def ask(self) -> PooledClaimConnection:
        """Return a line for one question."""
        with self._lock:
            spare, self._spare = self._spare, None
        return PooledClaimConnection(spare or self._open_line(), self._keep)

    def close(self) -> None:
        """Close the one that is kept."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare[1].close()

    def _keep(self, line: CoordinatorConnection) -> None:
        with self._lock:
            before, self._spare = self._spare, line
        if before is not None:
            before[1].close()


class PooledClaimConnection:
    """One claim. `cut` ends it while it is under way; afterwards it only returns the connection."""

    def __init__(self, line: CoordinatorConnection, keep: Callable[[CoordinatorConnection], None]) -> None:
        self._line = line
        self._keep = keep
        self._lock = threading.Lock()
        self._is_answered = False
        self._is_over = False

    def claim(self, claim: Claim) -> ClaimResponse:
        """Ask it."""
        answer = self._line[0].claim(claim)
        with self._lock:
            # One that was cut as its answer came is spoilt all the same.
            self._is_answered = not self._is_over
        return answer

    def cut(self) -> None:
        """End it, once; from any thread."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        if self._is_answered:
            self._keep(self._line)
            return
        transport = self._line[1]
        transport.abort()
        transport.close()


_LONGEST_WAIT_S = 30.0
_BESIDE = 8
"""So many jobs are asked for at a time beside one that shares a device."""
_USER_LOCKS = "/run/stoker/users"
# Callers decide themselves when to repeat a request: their lease may be over by then.
_ONCE = RequestTimeouts(answer_s=20.0, retry_s=0.0)


def work(house: AppParts, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
    """Work until there is a reason to end; give the exit code."""
    settings = house.settings
    house.make_state()
    capability = house.detect()
    name = options.name or host_name(settings.environment)[0]
    if not is_node_name(name):
        raise BadInput(f"{name!r} can't be a worker's name", hint=f"--name NAME: {NODE_NAME_RULE}")
    slots = options.slots or max(1, len(capability.usable_devices))
    with ExitStack() as opened:
        place = os.path.join(workers_folder(settings.state), name)
        users = _take_users(house, options, slots, place, opened)
        lines = _open_lines(house, options, opened)
        _keep_certificate(house, options, name, tell, opened)
        offer = MachineOffer(changed(capability, hostname=name))
        machine = LocalMachine(
            offer=offer,
            catalogue=house.catalogue,
            environment=_for_children(settings),
            own_prefix=sys.prefix,
            home=settings.home,
            ledger=lambda: house.ledger,
            users=users,
            accepts=options.accepts,
        )
        if closed := machine.closed_python():
            tell("closed_python", {"why": closed})
        _report_findings(house, options, machine, opened)
        _record_telemetry(house, options, machine, opened)
        worker = Worker(
            name=name,
            wishes=WorkerPolicy(
                slots=slots,
                # Each job that runs as another user has one to itself, and there are as many as slots.
                beside=0 if options.slots or users else _BESIDE,
                is_once=options.is_once,
                until_idle=options.until_idle,
                ends_s=options.ends_s,
                drain_s=options.drain[0],
                most_drain_s=options.drain[1],
                idle_s=options.idle_s,
                stop_grace_s=STOP_GRACE_S if options.stop_grace_s is None else options.stop_grace_s,
            ),
            slots=options.slots,
            declared=within_allocation(options.declared, settings.environment),
            version=house.version,
            lines=lines,
            machine=machine,
            argv=(sys.executable, "-m", "stoker.app.attempt_main"),
            folder=settings.folder,
            state=settings.state,
            place=place,
            runs=settings.runs,
            scratch=settings.scratch,
            store=lambda: house.store,
            clock=house.clock,
            entropy=house.entropy,
            new_word=lambda: secrets.token_hex(16),
            tell=tell,
            users=users,
            supervisor=NotifySocket(settings.environment, house.clock),
            holds=_holdings_of(house, users),
            preparing=_input_preparer(house, options, name),
            contents_at=_share_trees(house, options, opened),
            ends_with=mine() if goes_with_us(settings.home) else None,
            detect=house.detect,
        )
        return keep(worker)


def _for_children(settings: AppSettings) -> dict[str, str]:
    """Return the environment of a worker's processes: without an operator's token, which a worker never uses."""
    return {name: value for name, value in for_children(settings.environment).items() if name != OPERATOR_TOKEN}


def _input_preparer(house: AppParts, options: WorkOptions, name: str) -> InputPreparer:
    """Return what brings code, data and environments of jobs to this home."""
    from stoker.app.machine_parts import here_of
    from stoker.core.frozen import fields_of
    from stoker.core.jsontext import dumps
    from stoker.worker.preparation.prepare_child import InputPreparer, PreparingProgram, SmallTrees

    settings = house.settings
    here, _ = here_of(house, may_read_in_place=not options.run_as, keeps_workspaces=options.keeps_workspaces)
    way = {
        "url": options.url,
        "identity": {} if options.identity is None else fields_of(options.identity),
        "worker": name,
    }

    def ticket(grant: Grant, user: OtherUser | None) -> bytes:
        shown = {**way, "user": {} if user is None else user.to_dict(), "grant": grant.model_dump(mode="json")}
        return dumps(shown).encode() + b"\n"

    return InputPreparer(
        here=here,
        program=PreparingProgram(
            argv=(sys.executable, "-m", "stoker.app.prepare_main"),
            folder=settings.folder,
            environment=lambda: _for_children(settings),
            clock=house.clock,
        ),
        ticket=ticket,
        clock=house.clock,
        small=SmallTrees(
            store=lambda: house.store, open_origins=lambda: _origins(house, options, name), clock=house.clock
        ),
    )


@contextmanager
def _origins(house: AppParts, options: WorkOptions, name: str) -> Iterator[TreeSourceFinder]:
    """Open the connections to the machines that have trees of code."""
    from stoker.transfer.trees.tree_sources import FleetTreeSourceFinder, peer_opener

    client, transport = _line(house, options)
    try:
        opener = peer_opener(options.identity, clock=house.clock, user_agent=f"stoker/{house.version}")
        with FleetTreeSourceFinder(client, worker=name, open_peer=opener) as origins:
            yield origins
    finally:
        transport.close()


def _holdings_of(house: AppParts, users: tuple[OtherUser, ...]) -> Callable[[], MachineInventory]:
    """Return what says which trees of the fleet, and which environments for programs of its users, are in this home."""
    from stoker.transfer.trees.holdings import HeldTrees
    from stoker.worker.preparation.prepare_child import read_rate

    held = HeldTrees(house.store)
    environments = maker_of(house.settings, house.clock)
    return lambda: MachineInventory(
        trees=held.look(), brings_bytes_per_s=read_rate(house.store), **environments.report_for(users)
    )


def _share_trees(house: AppParts, options: WorkOptions, opened: ExitStack) -> str:
    """Serve trees to other machines of the fleet while this worker runs; return the address, empty if it can't."""
    from stoker.transfer.peer_server import PeerAdmission, share_trees

    admitting = PeerAdmission(_open_line(house, options, opened).live_certificates, clock=house.clock)
    server = share_trees(options.url, options.identity, house.store, clock=house.clock, admits=admitting.admits)
    if isinstance(server, str):
        return ""
    opened.callback(server.close)
    return server.url


def _open_line(house: AppParts, options: WorkOptions, opened: ExitStack) -> FleetClient:
    """Open a connection to the coordinator for one use, closed with the rest."""
    client, transport = _line(house, options)
    opened.callback(transport.close)
    return client


def _line(house: AppParts, options: WorkOptions) -> tuple[FleetClient, Transport]:
    transport = house.open_transport(_LONGEST_WAIT_S, direct=asked_directly(options.url), fleet=options.identity)
    return FleetClient(transport, options.url, clock=house.clock, patience=_ONCE), transport


def _take_users(
    house: AppParts, options: WorkOptions, slots: int, place: str, opened: ExitStack
) -> tuple[OtherUser, ...]:
    """Lock the users that jobs run as for this worker alone, if it was given any."""
    if not options.run_as:
        return ()
    from stoker.host.users import read_users
    from stoker.worker.job_users import USERS, check_users, lock_users

    users = read_users(options.run_as)
    check_users(users, slots=slots, home=house.settings.home, folder=os.path.join(place, USERS))
    for lock in lock_users(users, _USER_LOCKS, house.clock):
        opened.callback(lock.release)
    return users


def _keep_certificate(
    house: AppParts,
    options: WorkOptions,
    name: str,
    tell: Callable[[str, dict[str, Any]], None],
    opened: ExitStack,
) -> None:
    """Renew the certificate of an enrolled machine in time, over a connection of its own."""
    identity = options.identity
    if identity is None or not identity.certificate_file or not options.renews_certificate:
        return
    from stoker.worker.certificate_renewal import CertificateRenewal

    line = _open_line(house, options, opened)
    renewing = CertificateRenewal(
        line, name=name, certificate_file=identity.certificate_file, clock=house.clock, tell=tell
    )
    renewing.start()
    opened.callback(renewing.close)


def _report_findings(house: AppParts, options: WorkOptions, machine: LocalMachine, opened: ExitStack) -> None:
    """Report the state of this machine to the coordinator, at the start and daily."""
    from stoker.worker.machine_checks import MachineReporter

    line = _open_line(house, options, opened)
    reporting = MachineReporter(
        line.report,
        name=machine.capability.hostname,
        version=house.version,
        look=lambda: find_out(house, machine.capability, closed_python=machine.closed_python()),
        clock=house.clock,
    )
    reporting.start()
    opened.callback(reporting.close)


def _record_telemetry(house: AppParts, options: WorkOptions, machine: LocalMachine, opened: ExitStack) -> None:
    """Sample this machine's devices while the worker runs, and report to the coordinator."""
    from stoker.devices.telemetry.recorder import FOLDER, TelemetryRecorder
    from stoker.devices.telemetry.samples import DeviceSampler
    from stoker.worker.telemetry import TelemetryReporting, TelemetrySampling

    def names() -> dict[str, str]:
        return {device.uuid: device.name for device in machine.capability.devices}

    settings = house.settings
    sampler = DeviceSampler(lambda: machine.capability.devices, settings.environment)
    recorder = TelemetryRecorder(
        os.path.join(settings.state, FOLDER),
        sampler.sample,
        lambda: house.ledger.reserved() if machine.capability.usable_devices else {},
        clock=house.clock,
        name_of=lambda uuid: names().get(uuid, ""),
    )
    line = _open_line(house, options, opened)
    reporting = TelemetryReporting(
        recorder, line.report_telemetry, worker=machine.capability.hostname, names=names, clock=house.clock
    )
    sampling = TelemetrySampling(recorder, clock=house.clock, on_alert=reporting.hurry)
    reporting.start()
    sampling.start()
    opened.callback(sampler.close)
    for task in (reporting, sampling):
        opened.callback(task.close)


def _open_lines(house: AppParts, options: WorkOptions, opened: ExitStack) -> WorkerConnections:
    words, claiming = _open_line(house, options, opened), ClaimConnectionPool(lambda: _line(house, options))
    opened.callback(claiming.close)
    more, execs = (_open_line(house, options, opened) for _ in range(2))
    return WorkerConnections(url=words.url, words=words, bytes=more, ask=claiming.ask, execs=execs)


_LONGEST_FACT = 200
_LONGEST = 1000


def find_out(house: AppParts, capability: Capability, *, closed_python: str = "") -> tuple[DoctorFinding, ...]:
    """Look at what may have changed, and judge it together with what was detected.

    `closed_python` is why programs can't be started with `python` by the users that they run as.
    """
    settings = house.settings
    places = {"store": settings.store, "runs": settings.runs, "scratch": settings.scratch}
    around = survey(places, contain=lambda: house.containment, reflink=reflink, ports=())
    checks = (
        *check_machine(capability),
        *check_surroundings(around),
        *check_devices(capability),
        check_recipes(len(capability.recipes), ()),
        *([Check(name="run-as", verdict=CheckStatus.WARN, message=closed_python)] if closed_python else ()),
    )
    return tuple(
        DoctorFinding(
            name=one.name[:_LONGEST_FACT],
            verdict=str(one.verdict),
            message=one.message[:_LONGEST],
            hint=one.hint[:_LONGEST],
        )
        for one in checks
    )
