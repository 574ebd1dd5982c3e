"""The verbs about who belongs to the fleet, by their commands; and their rows, read into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.authority.standing import HeldToken, Invite, IssuedCertificate, Standing
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.coordinator.queue.certifying import CERTIFICATE_FIELDS, issue_certificate
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.inviting import INVITE_FIELDS, fail_invite, make_invite, use_invite, withdraw_invite
from stoker.coordinator.queue.people import TOKEN_FIELDS, make_token, note_tokens, revoke_token, rotate_token
from stoker.coordinator.queue.queries import Queries
from stoker.coordinator.queue.trust_commands import (
    FailInvite,
    IssueCertificate,
    MakeInvite,
    MakeToken,
    NoteTokens,
    RevokeToken,
    RotateToken,
    UseInvite,
    WithdrawInvite,
)
from stoker.coordinator.queue.turn import Turn

TRUST_VERBS: dict[type, Callable[[Turn, Any], Done]] = {
    MakeInvite: make_invite,
    FailInvite: fail_invite,
    WithdrawInvite: withdraw_invite,
    UseInvite: use_invite,
    IssueCertificate: issue_certificate,
    MakeToken: make_token,
    RotateToken: rotate_token,
    RevokeToken: revoke_token,
    NoteTokens: note_tokens,
}


def load_standing(connection: WriterConnection, queries: Queries, now_s: float) -> Standing:
    """Read who may what. Certificates that have expired are of no use to anybody."""
    standing = Standing()
    for row in connection.read(queries.invites):
        invite = Invite(**dict(zip(INVITE_FIELDS, row, strict=True)))
        standing.invites[invite.id] = invite
    for row in connection.read(queries.tokens):
        token = HeldToken(**dict(zip(TOKEN_FIELDS, row, strict=True)))
        standing.tokens[token.sha256] = token
    for row in connection.read(queries.certificates, after_s=now_s):
        certificate = IssuedCertificate(**dict(zip(CERTIFICATE_FIELDS, row, strict=True)))
        standing.certificates[certificate.serial] = certificate
    return standing
