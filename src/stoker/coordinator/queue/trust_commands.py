"""What may be asked of the queue about who belongs to the fleet. All of them are answered by `Done`."""

from __future__ import annotations

from typing import TypeAlias

from stoker.coordinator.authority.standing import HeldToken, Invite, IssuedCertificate
from stoker.model.frozen import frozen


@frozen
class MakeInvite:
    """Somebody may join. Times of `invite` are set when it is stored; `data` has when it is over."""

    invite: Invite
    life_s: float


@frozen
class FailInvite:
    """Somebody tried an invitation with a wrong code."""

    id: str
    address: str = ""


@frozen
class WithdrawInvite:
    """Nobody is to join with this one any more."""

    id: str
    by: str = ""


@frozen
class UseInvite:
    """Somebody joins: they get a certificate or a token, once. `data["answer"]` is what the first who asked so got."""

    id: str
    request: str
    answer: str
    certificate: IssuedCertificate | None = None
    token: HeldToken | None = None
    address: str = ""


@frozen
class IssueCertificate:
    """A machine gets its next certificate; the present one must still be good."""

    certificate: IssuedCertificate
    present: str
    """The number of the one that it shows."""


@frozen
class RevokeCertificate:
    """Take a certificate back: no request counts that is made with it from now on."""

    serial: str
    why: str = ""
    by: str = ""


@frozen
class MakeToken:
    """Somebody gets a token; refused while another one of that name is live."""

    token: HeldToken
    life_s: float | None = None


@frozen
class RotateToken:
    """Put a new token in the place of one; the old one ends now."""

    id: str
    new: HeldToken
    """Name, role and end are the old one's, and so is how long it lasts."""
    by: str = ""


@frozen
class RevokeToken:
    """Take a token back."""

    id: str
    by: str = ""


@frozen
class NoteTokens:
    """Tokens were used of late (ids)."""

    ids: tuple[str, ...]


TrustCommand: TypeAlias = (
    MakeInvite
    | FailInvite
    | WithdrawInvite
    | UseInvite
    | IssueCertificate
    | RevokeCertificate
    | MakeToken
    | RotateToken
    | RevokeToken
    | NoteTokens
)
