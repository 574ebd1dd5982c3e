"""What `join` and a worker beside its coordinator have in common: names, the look at the machine, the two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import client_of
from stoker.hardware.checkup import Check
from stoker.hardware.host_name import host_name
from stoker.model.errors import BadInput, StokerError
from stoker.model.names import LONGEST_NAME, NODE_NAME_RULE, is_node_name
from stoker.model.principals import Role
from stoker.wire.finding import find_coordinator, no_coordinator_known
from stoker.worker.submitting.person import user_name

if TYPE_CHECKING:
    from stoker.wire.joined import Membership
    from stoker.worker.enrolling.joining import Proven

_OWN_CODE_S = 300.0


def name_to_join(call: Call, wanted: str, proven: Proven) -> str:
    """Give the name to join under: the invitation's, what was asked for, the one of before, or this machine's own."""
    if proven.name:
        if wanted and wanted != proven.name:
            hint = f"leave --name out, or have {wanted} invited: stoker machines invite --name {wanted}"
            raise BadInput(f"this code is for {proven.name}, not for {wanted}", hint=hint)
        return proven.name
    name = wanted or _name_before(call, proven) or _own_name(call, proven.role)
    if not is_node_name(name):
        raise BadInput(f"{name!r} can't be a name in a fleet", hint=f"--name NAME: {NODE_NAME_RULE}")
    return name


def look_at_machine(call: Call, proven: Proven) -> tuple[Check, ...]:
    """Test this machine before anybody hears of it."""
    from stoker.worker.enrolling.self_test import Facts, self_test

    parts = call.parts
    return self_test(
        Facts(
            capability=parts.detect(),
            survey=parts.survey,
            store_trouble=_store_trouble(call),
            offset_s=proven.offset_s,
            version=parts.version,
            coordinator_version=proven.version,
        )
    )


def join_here(call: Call, url: str, name: str) -> Membership:
    """Join the coordinator of this very home, over its Unix socket: the user who runs it needs no invitation."""
    from stoker.wire.enrolling import InviteAsk
    from stoker.wire.join_proofs import read_code
    from stoker.worker.enrolling.invitation import Invitation
    from stoker.worker.enrolling.joining import begin, finish

    own = name or host_name(call.parts.settings.environment)[0]
    if not is_node_name(own):
        raise BadInput(f"{own!r} can't be a worker's name", hint=f"--name NAME: {NODE_NAME_RULE}")
    # As its operator, not as the machine: that may have no certificate, or one that has ended. No token is taken from
    # the environment: a worker never holds one.
    found = find_coordinator(url, environment={}, state=call.parts.settings.state)
    if found is None:
        raise no_coordinator_known(call.parts.settings.state)
    invited = client_of(call, found).invite(InviteAsk(role=Role.WORKER, name=own, life_s=_OWN_CODE_S))
    proven = begin(Invitation(code=read_code(invited.code), url=url.rstrip("/")), call.parts)
    return finish(proven, own, call.parts, state=call.parts.settings.state)


def _name_before(call: Call, proven: Proven) -> str:
    """Give the name under which this home belongs to the very same fleet already."""
    from stoker.wire.joined import Side, read_joined

    try:
        before = read_joined(call.parts.settings.state, Side.of(proven.role))
    except StokerError:
        # What is spoilt is about to be replaced.
        return ""
    return before.name if before is not None and before.fingerprint == proven.fingerprint else ""


def _own_name(call: Call, role: Role) -> str:
    host = host_name(call.parts.settings.environment)[0]
    if role is Role.WORKER:
        return host
    # A person's token is named after both: one laptop may have several people, and one person several laptops.
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in user_name())
    return f"{plain.lstrip('._-') or 'somebody'}-{host}"[:LONGEST_NAME]


def _store_trouble(call: Call) -> str:
    try:
        call.parts.store.places  # noqa: B018 - opening it writes to it
    except StokerError as error:
        return error.message
    return ""
