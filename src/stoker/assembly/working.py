"""A worker joined: its machine looked at, its lines opened, its keeper run."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from stoker.assembly.claiming_lines import ClaimingLines
from stoker.assembly.environments import maker_of
from stoker.hardware.host_name import host_name
from stoker.host.http.addresses import asked_directly
from stoker.host.notify_socket import NotifySocket, for_children
from stoker.model.errors import BadInput
from stoker.model.frozen import changed
from stoker.model.names import NODE_NAME_RULE, is_node_name
from stoker.wire.client import FleetClient
from stoker.wire.finding import OPERATOR_TOKEN
from stoker.wire.leasing import Holdings
from stoker.wire.speaking import Patience
from stoker.worker.keeper.daemon import Worker, keep
from stoker.worker.keeper.journal import workers_folder
from stoker.worker.keeper.lines import Lines
from stoker.worker.keeper.machine import Machine
from stoker.worker.keeper.redetecting import Offer
from stoker.worker.keeper.state import STOP_GRACE_S, Wishes

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.hardware.ledger.ledger import Ledger
    from stoker.host.containment.choice import Chosen
    from stoker.host.http.exchange import Transport
    from stoker.host.http.settings import FleetIdentity
    from stoker.host.other_user import OtherUser
    from stoker.model.capability import Capability
    from stoker.model.clock import Clock
    from stoker.plan.catalogue import Catalogue
    from stoker.store.local import LocalStore
    from stoker.wire.leasing import Grant
    from stoker.worker.keeper.options import WorkOptions
    from stoker.worker.preparing.preparing import Preparing
    from stoker.worker.shipping.origins import Origins

_LONGEST_WAIT_S = 30.0
_BESIDE = 8
"""So many jobs are asked for at a time beside one that shares a device."""
_USER_LOCKS = "/run/stoker/users"
# Whoever speaks here decides itself when to say it again: its lease may be over by then.
_ONCE = Patience(answer_s=20.0, retry_s=0.0)


class House(Protocol):
    """What a worker needs of the house that it lives in."""

    settings: Settings
    version: str

    @property
    def clock(self) -> Clock: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def store(self) -> LocalStore: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def containment(self) -> Chosen: ...
    def entropy(self) -> int: ...
    def make_state(self) -> None: ...
    def detect(self) -> Capability: ...
    def open_transport(
        self, longest_wait_s: float, *, direct: tuple[str, ...] = (), fleet: FleetIdentity | None = None
    ) -> Transport: ...


def work(house: House, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
    """Work until there is a reason to end; give the exit code."""
    settings = house.settings
    ends_s = None if options.for_s is None else house.clock.boottime_s() + options.for_s
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
        offer = Offer(changed(capability, hostname=name))
        machine = Machine(
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
        worker = Worker(
            name=name,
            wishes=Wishes(
                slots=slots,
                # Each job that runs as another user has one to itself, and there are as many as slots.
                beside=0 if options.slots or users else _BESIDE,
                is_once=options.is_once,
                until_idle=options.until_idle,
                ends_s=ends_s,
                stop_grace_s=STOP_GRACE_S if options.stop_grace_s is None else options.stop_grace_s,
            ),
            slots=options.slots,
            declared=dict(options.declared),
            version=house.version,
            lines=lines,
            machine=machine,
            argv=(sys.executable, "-m", "stoker.assembly.attempting"),
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
            preparing=_preparing_of(house, options, name),
            contents_at=_share_trees(house, options, opened),
            detect=house.detect,
        )
        return keep(worker)


def _for_children(settings: Settings) -> dict[str, str]:
    """Return the environment of a worker's processes: without an operator's token, which a worker never uses."""
    return {name: value for name, value in for_children(settings.environment).items() if name != OPERATOR_TOKEN}


def _preparing_of(house: House, options: WorkOptions, name: str) -> Preparing:
    """Give what brings code, data and environments of jobs to this home."""
    from stoker.assembly.here import here_of
    from stoker.model.frozen import fields_of
    from stoker.model.json_text import dumps
    from stoker.worker.preparing.child import PreparingProgram
    from stoker.worker.preparing.preparing import Preparing
    from stoker.worker.preparing.small_trees import SmallTrees

    settings = house.settings
    here, _ = here_of(house, may_read_in_place=not options.run_as, keeps_workspaces=options.keeps_workspaces)
    way = {
        "url": options.url,
        "identity": {} if options.identity is None else fields_of(options.identity),
        "worker": name,
    }

    def ticket(grant: Grant, user: OtherUser | None) -> bytes:
        told = {**way, "user": {} if user is None else user.to_dict(), "grant": grant.model_dump(mode="json")}
        return dumps(told).encode() + b"\n"

    return Preparing(
        here=here,
        program=PreparingProgram(
            argv=(sys.executable, "-m", "stoker.assembly.preparing"),
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
def _origins(house: House, options: WorkOptions, name: str) -> Iterator[Origins]:
    """Open the ways to whoever has trees of code."""
    from stoker.worker.peering.reaching import peer_opener
    from stoker.worker.shipping.origins import FleetOrigins

    client, transport = _line(house, options)
    try:
        opener = peer_opener(options.identity, clock=house.clock, user_agent=f"stoker/{house.version}")
        with FleetOrigins(client, transport, worker=name, open_peer=opener) as origins:
            yield origins
    finally:
        transport.close()


def _holdings_of(house: House, users: tuple[OtherUser, ...]) -> Callable[[], Holdings]:
    """Return what says which trees of the fleet, and which environments for programs of its users, are in this home."""
    from stoker.store.held import HeldTrees
    from stoker.worker.preparing.rate import read_rate

    held = HeldTrees(house.store)
    environments = maker_of(house.settings, house.clock)
    return lambda: Holdings(trees=held.look(), brings_bytes_per_s=read_rate(house.store), **environments.told_of(users))


def _share_trees(house: House, options: WorkOptions, opened: ExitStack) -> str:
    """Give trees to other machines of the fleet while this worker runs; give where, or nothing where that can't be."""
    from stoker.worker.peering.admitting import Admitting
    from stoker.worker.peering.sharing import share_trees

    admitting = Admitting(_open_line(house, options, opened).live_certificates, clock=house.clock)
    server = share_trees(options.url, options.identity, house.store, clock=house.clock, admits=admitting.admits)
    if isinstance(server, str):
        return ""
    opened.callback(server.close)
    return server.url


def _open_line(house: House, options: WorkOptions, opened: ExitStack) -> FleetClient:
    """Open a line to the coordinator that is nobody else's, closed with the rest."""
    client, transport = _line(house, options)
    opened.callback(transport.close)
    return client


def _line(house: House, options: WorkOptions) -> tuple[FleetClient, Transport]:
    transport = house.open_transport(_LONGEST_WAIT_S, direct=asked_directly(options.url), fleet=options.identity)
    return FleetClient(transport, options.url, clock=house.clock, patience=_ONCE), transport


def _take_users(house: House, options: WorkOptions, slots: int, place: str, opened: ExitStack) -> tuple[OtherUser, ...]:
    """Take the users that jobs run as for this worker alone, if it was told any."""
    if not options.run_as:
        return ()
    from stoker.host.other_user import read_users
    from stoker.worker.keeper.users import USERS, check_users, lock_users

    users = read_users(options.run_as)
    check_users(users, slots=slots, home=house.settings.home, folder=os.path.join(place, USERS))
    for lock in lock_users(users, _USER_LOCKS, house.clock):
        opened.callback(lock.release)
    return users


def _keep_certificate(
    house: House,
    options: WorkOptions,
    name: str,
    tell: Callable[[str, dict[str, Any]], None],
    opened: ExitStack,
) -> None:
    """Have the certificate of a machine that joined renewed in time, over a line of its own."""
    identity = options.identity
    if identity is None or not identity.certificate_file:
        return
    from stoker.worker.enrolling.renewing import Renewing

    line = _open_line(house, options, opened)
    renewing = Renewing(line, name=name, certificate_file=identity.certificate_file, clock=house.clock, tell=tell)
    renewing.start()
    opened.callback(renewing.close)


def _report_findings(house: House, options: WorkOptions, machine: Machine, opened: ExitStack) -> None:
    """Have the coordinator told what is to be known of this machine, at the start and daily."""
    from stoker.assembly.machine_findings import find_out
    from stoker.worker.reporting import Reporting

    line = _open_line(house, options, opened)
    reporting = Reporting(
        line,
        name=machine.capability.hostname,
        version=house.version,
        look=lambda: find_out(house, machine.capability, closed_python=machine.closed_python()),
        clock=house.clock,
    )
    reporting.start()
    opened.callback(reporting.close)


def _open_lines(house: House, options: WorkOptions, opened: ExitStack) -> Lines:
    words, claiming = _open_line(house, options, opened), ClaimingLines(lambda: _line(house, options))
    opened.callback(claiming.close)
    more, execs = (_open_line(house, options, opened) for _ in range(2))
    return Lines(url=words.url, words=words, bytes=more, ask=claiming.ask, execs=execs)
