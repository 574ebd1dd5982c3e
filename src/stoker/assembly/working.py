"""A worker joined: its machine looked at, its lines opened, its keeper run."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from stoker.hardware.detecting import host_name
from stoker.host.http.addresses import is_inner, read_address
from stoker.model.errors import BadInput
from stoker.model.frozen import changed
from stoker.model.names import NODE_NAME_RULE, is_node_name
from stoker.wire.client import FleetClient
from stoker.wire.leasing import Claim, Granted
from stoker.wire.speaking import Patience
from stoker.worker.keeper.daemon import Worker, keep
from stoker.worker.keeper.lines import Asking, Lines
from stoker.worker.keeper.machine import Machine
from stoker.worker.keeper.state import STOP_GRACE_S, Wishes

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.hardware.ledger.ledger import Ledger
    from stoker.host.http.exchange import Transport
    from stoker.model.capability import Capability
    from stoker.model.clock import Clock
    from stoker.plan.catalogue import Catalogue
    from stoker.store.local import LocalStore
    from stoker.worker.keeper.options import WorkOptions

_LONGEST_WAIT_S = 30.0
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
    def entropy(self) -> int: ...
    def make_state(self) -> None: ...
    def detect(self) -> Capability: ...
    def open_transport(self, longest_wait_s: float, *, direct: tuple[str, ...] = ()) -> Transport: ...


def work(house: House, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
    """Work until there is a reason to end; give the exit code."""
    settings = house.settings
    house.make_state()
    capability = house.detect()
    name = options.name or host_name(settings.environment)[0]
    if not is_node_name(name):
        raise BadInput(f"{name!r} can't be a worker's name", hint=f"--name NAME: {NODE_NAME_RULE}")
    with ExitStack() as opened:
        worker = Worker(
            name=name,
            wishes=Wishes(
                slots=options.slots or max(1, len(capability.usable_devices)),
                is_once=options.is_once,
                until_idle=options.until_idle,
                stop_grace_s=STOP_GRACE_S if options.stop_grace_s is None else options.stop_grace_s,
            ),
            slots=options.slots,
            declared=dict(options.declared),
            version=house.version,
            lines=_open_lines(house, options, opened),
            machine=Machine(
                capability=changed(capability, hostname=name),
                catalogue=house.catalogue,
                environment=settings.environment,
                own_prefix=sys.prefix,
                home=settings.home,
                ledger=lambda: house.ledger,
            ),
            argv=(sys.executable, "-m", "stoker.assembly.attempting"),
            folder=settings.folder,
            state=settings.state,
            place=os.path.join(settings.state, "worker", name),
            runs=settings.runs,
            scratch=settings.scratch,
            store=lambda: house.store,
            clock=house.clock,
            entropy=house.entropy,
            new_word=lambda: secrets.token_hex(16),
            tell=tell,
        )
        return keep(worker)


def _open_lines(house: House, options: WorkOptions, opened: ExitStack) -> Lines:
    host = read_address(options.url).origin.host
    # A proxy is for the way out; this computer and its own network are asked directly.
    direct = (host,) if is_inner(host) else ()

    def open_transport() -> Transport:
        return house.open_transport(_LONGEST_WAIT_S, direct=direct)

    def client(transport: Transport) -> FleetClient:
        return FleetClient(transport, options.url, clock=house.clock, token=options.token, patience=_ONCE)

    def open_client() -> FleetClient:
        transport = open_transport()
        opened.callback(transport.close)
        return client(transport)

    def ask() -> Asking:
        transport = open_transport()
        return _Asking(client(transport), transport)

    words = open_client()
    return Lines(url=words.url, words=words, bytes=open_client(), ask=ask)


class _Asking:
    """A line of its own, so that cutting it cuts nothing else."""

    def __init__(self, client: FleetClient, transport: Transport) -> None:
        self._client = client
        self._transport = transport

    def claim(self, claim: Claim) -> Granted:
        return self._client.claim(claim)

    def cut(self) -> None:
        self._transport.abort()
        self._transport.close()
