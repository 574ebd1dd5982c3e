"""The coordinator that a command means: `--at URL`, STOKER_COORDINATOR, this home's own, or the one it joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Option
from stoker.core.errors import BadAnswer, Forbidden, NoCoordinator
from stoker.protocol.discovery import CoordinatorEndpoint, coordinator_gone, find_coordinator, no_coordinator_known

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient

AT = Option(
    "--at",
    value="URL",
    help="the coordinator; unless told STOKER_COORDINATOR, the one on this machine, or the one that was joined",
)
_ANSWER_S = 30.0
_RETRY_S = 1.0
_CONNECT_S = 3.0


def reach(call: CommandContext, at: str | None = "") -> FleetClient:
    """Return a client of the coordinator that is meant; `NoCoordinator` if none is known. Nobody is asked yet."""
    found = find(call, at)
    if found is None:
        raise no_coordinator_known(call.parts.settings.state)
    return client_of(call, found)


def find(call: CommandContext, at: str | None = "") -> CoordinatorEndpoint | None:
    """Return which coordinator is meant, if any."""
    settings = call.parts.settings
    return find_coordinator(at or "", environment=settings.environment, state=settings.state)


def reach_if_any(call: CommandContext, at: str | None = "") -> FleetClient | None:
    """Return a client of a coordinator that answers; None if there is none.

    A coordinator that was not named for this command need not answer: a note says so. If it refuses a token, the
    command shows what is here and ends with that refusal.
    """
    found = find(call, at)
    if found is None:
        note_if_gone(call)
        return None
    # A laptop that is elsewhere now need not wait for the fleet that it joined.
    client = client_of(call, found, connect_s=None if at else _CONNECT_S)
    try:
        # Where nobody asked for it, nobody waits for it.
        (client if at else client.more_patient(0.0)).jobs(limit=1)
    except (NoCoordinator, BadAnswer, Forbidden) as error:
        if at:
            raise
        message = f"{error.message}; only what is here is shown"
        if isinstance(error, Forbidden) and found.token:
            call.incomplete = Forbidden(message, hint=error.hint, **error.data)
        else:
            call.out.note(f"note: {message}")
        return None
    return client


def note_if_gone(call: CommandContext) -> None:
    """Say so if this home has a coordinator that is down: jobs that seem to be missing wait for it."""
    if (url := coordinator_gone(call.parts.settings.state)) is not None:
        call.out.note(f"note: the coordinator of this home ({url}) is not running; `stoker serve` starts it again")


def client_of(call: CommandContext, found: CoordinatorEndpoint, *, connect_s: float | None = None) -> FleetClient:
    """Return a client of a coordinator; its connections are closed with the command."""
    from stoker.host.http.addresses import asked_directly
    from stoker.protocol.client import FleetClient
    from stoker.protocol.transport import RequestTimeouts

    direct = asked_directly(found.url)
    transport = call.parts.open_transport(_ANSWER_S, direct=direct, fleet=found.identity, connect_s=connect_s)
    call.keep_open(transport)
    patience = RequestTimeouts(answer_s=_ANSWER_S, silence_s=_ANSWER_S, retry_s=_RETRY_S)
    return FleetClient(transport, found.url, clock=call.parts.clock, token=found.token, patience=patience)
