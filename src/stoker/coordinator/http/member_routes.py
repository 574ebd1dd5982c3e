"""Routes by which machines and people come to belong to the fleet, and cease to: invitations, joining, certificates."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Path, Request, Response

from stoker.coordinator.auth import (
    LIFE_S,
    MOST_FAILURES_EACH,
    ApiTokenRecord,
    Enrolment,
    Invite,
    InviteVerdict,
    RateLimiter,
    RateLimiterSettings,
    TrustState,
    judge_finish,
    key_of,
    make_token,
    make_token_id,
    not_invited,
    request_digest,
    server_nonce,
    token_digest,
    token_of,
)
from stoker.coordinator.http.access import PEER, UNKNOWN, Peer, Who, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import RouteTable, answer, done
from stoker.coordinator.queue.commands import (
    FailInvite,
    IssueCertificate,
    MakeInvite,
    MakeToken,
    QueueCommandResult,
    RevokeCertificate,
    RevokeToken,
    RotateToken,
    UseInvite,
    WithdrawInvite,
)
from stoker.core.errors import BadInput, Conflict, Forbidden, Refused
from stoker.core.leases import Role
from stoker.core.text import NODE_NAME_RULE, is_node_name
from stoker.host.network import source_of
from stoker.protocol.codec import from_json, to_json
from stoker.protocol.enrolment_messages import (
    NEVER,
    CertificateList,
    CertificateView,
    InviteList,
    InviteRequest,
    InviteResponse,
    InviteView,
    JoinBegin,
    JoinBeginResponse,
    JoinFinish,
    JoinFinishResponse,
    JoinPurpose,
    LiveCertificates,
    RenewCertificate,
    TokenList,
    TokenRequest,
    TokenResponse,
    TokenView,
    begin_proof,
    join_key,
    make_code,
    make_invite_id,
    seal,
)
from stoker.protocol.view_messages import ChangeRequest, DoneView, MachineRequest

_TRIES = 20
"""At a free id for an invitation."""
_BY_ADDRESS = RateLimiterSettings(burst=20, each_s=6.0)
_BY_ALL = RateLimiterSettings(burst=200, each_s=0.5)
_WRONG_CODES = RateLimiterSettings(burst=MOST_FAILURES_EACH, each_s=3600.0)
_NOTHING_SAID = MachineRequest()

InviteId = Annotated[str, Path(pattern=r"^[0-9A-Z]{2,8}$", description="An invitation's id")]
Serial = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="A certificate's number")]


class EnrolmentRoutes:
    """Routes about invitations, joining and certificates. Without a CA (loopback only) there are no invitations."""

    def __init__(self, context: ServiceContext, enrolment: Enrolment | None) -> None:
        self._context = context
        self._enrolment = enrolment
        self._joins, self._all_joins = RateLimiter(_BY_ADDRESS), RateLimiter(_BY_ALL)
        self._wrong_codes = RateLimiter(_WRONG_CODES)
        self.router = RouteTable("enrolment")
        add = self.router.add
        add("/v1/invites", self.invite, methods=["POST"], response_model=InviteResponse)
        add("/v1/invites", self.invites, response_model=InviteList)
        add("/v1/invites/{id}", self.withdraw, methods=["DELETE"], response_model=DoneView)
        add("/v1/join/begin", self.begin, methods=["POST"], response_model=JoinBeginResponse)
        add("/v1/join/finish", self.finish, methods=["POST"], response_model=JoinFinishResponse)
        add("/v1/certificates", self.certificates, response_model=CertificateList)
        add("/v1/certificates/live", self.live_certificates, response_model=LiveCertificates)
        add("/v1/certificates/renew", self.renew, methods=["POST"], response_model=JoinFinishResponse)
        add("/v1/certificates/{serial}/revoke", self.revoke, methods=["POST"], response_model=DoneView)

    async def invite(self, asked: InviteRequest, who: Who) -> Response:
        """Invite a machine (role operate) or a user (role admin). The code is shown once."""
        if asked.role is not Role.WORKER and not who.may(Role.ADMIN):
            raise Forbidden(
                "inviting users needs the role admin", hint="the role operate can invite machines", role=who.role.value
            )
        if asked.name and not is_node_name(asked.name):
            raise BadInput(f"{asked.name[:100]!r} is not a valid name", hint=NODE_NAME_RULE)
        enrolment = self._opened()
        for _ in range(_TRIES):
            code = make_code(make_invite_id(secrets.token_bytes(2)), secrets.token_bytes(8))
            # Slow on purpose: in a thread, so that the event loop stays free.
            key = await self._context.keep(join_key, code)
            by = recorded(who, "")
            invite = Invite(id=code.id, role=asked.role.value, name=asked.name, key=key.hex(), by=by)
            try:
                made: QueueCommandResult = await self._context.ask(MakeInvite(invite=invite, life_s=asked.life_s))
            except Conflict:
                continue
            names = enrolment.names()
            invited = InviteResponse(
                id=code.id,
                code=code.text(),
                role=asked.role,
                name=asked.name,
                expires_s=made.data["expires_s"],
                url=f"https://{names[0]}",
                names=names,
            )
            return answer(invited)
        raise Refused("no free id for another invitation", hint="try again")

    async def invites(self) -> Response:
        """List invitations, newest first; their codes are not stored."""
        invites = self._standing().invites.values()
        standing = (one for one in invites if not one.is_withdrawn and not one.is_ticket)
        found = sorted(standing, key=lambda one: -one.made_s)
        return answer(InviteList(invites=tuple(InviteView.model_validate(one, from_attributes=True) for one in found)))

    async def withdraw(self, id: InviteId, who: Who) -> Response:
        """Withdraw an invitation."""
        return done(await self._context.ask(WithdrawInvite(id=id, by=recorded(who, ""))))

    async def begin(self, asked: JoinBegin) -> Response:
        """Return the CA, with the proof that the coordinator knows the code's key.

        Without the code the response reveals nothing else: every id, also an unknown one, gets the same response.
        """
        enrolment, now_s = self._opened(), self._context.clock.wall_s()
        ca, invite = enrolment.ca, self._standing().invites.get(asked.id)
        nonces = {"nonce": asked.nonce, "server_nonce": server_nonce(ca, asked.id, asked.nonce, now_s)}
        key = key_of(ca, invite, asked.id)
        purpose = JoinPurpose(role=Role(invite.role), name=invite.name) if invite else JoinPurpose(role=Role.WORKER)
        return answer(
            JoinBeginResponse(
                ca_pem=ca.certificate_pem,
                nonce=nonces["server_nonce"],
                proof=begin_proof(key, **nonces, ca_pem=ca.certificate_pem, role=Role.WORKER, name=""),
                sealed=seal(key, to_json(purpose).decode(), **nonces),
                version=self._context.about.version,
                server_s=now_s,
            )
        )

    async def finish(self, said: JoinFinish, request: Request) -> Response:
        """Redeem an invitation with a proof of its code: a machine gets a certificate, a user a token."""
        enrolment, now_s, address = self._opened(), self._context.clock.wall_s(), _peer(request).address
        invite = self._standing().invites.get(said.id)
        judged = judge_finish(enrolment.ca, invite, said, now_s)
        if judged.verdict is InviteVerdict.WRONG:
            self._count_wrong(said.id, request)
            await self._context.ask(FailInvite(id=said.id, address=address))
        if judged.verdict is InviteVerdict.COPIED:
            # Raises, too.
            await self._context.ask(UseInvite(id=said.id, request=request_digest(said), answer="", address=address))
        if judged.error is not None or invite is None:
            raise judged.error or not_invited(invite, now_s)
        digest, role = request_digest(said), Role(invite.role)
        token = token_of(enrolment.ca.derive("stoker/join/token/1", digest)) if role is not Role.WORKER else ""
        if judged.verdict is InviteVerdict.REPEAT:
            return answer(_with_token(invite.answer, token))
        use = self._welcomed(enrolment, said, role, token, now_s=now_s, address=address)
        used: QueueCommandResult = await self._context.ask(use)
        return answer(_with_token(used.data["answer"], token))

    async def certificates(self) -> Response:
        """List machines' certificates that have not expired."""
        found = sorted(self._standing().certificates.values(), key=lambda one: (one.name, one.issued_s))
        return answer(
            CertificateList(
                certificates=tuple(CertificateView.model_validate(one, from_attributes=True) for one in found)
            )
        )

    async def live_certificates(self) -> Response:
        """Return the serial numbers of all valid certificates of machines."""
        now_s = self._context.clock.wall_s()
        found = self._standing().certificates.values()
        return answer(LiveCertificates(serials=tuple(one.serial for one in found if one.is_live(now_s))))

    async def renew(self, asked: RenewCertificate, who: Who, request: Request) -> Response:
        """Issue a machine's next certificate, under the name in the present one."""
        enrolment, shown = self._opened(), _peer(request).certificate
        if shown is None:
            raise Forbidden("renewal needs the machine's present certificate", hint="join with a code")
        now_s = self._context.clock.wall_s()
        signed, issued = enrolment.sign(asked.csr_pem, who.name, now_s=now_s)
        await self._context.ask(IssueCertificate(certificate=issued, present=shown.serial))
        return answer(
            JoinFinishResponse(
                name=who.name,
                role=Role.WORKER,
                ca_pem=enrolment.ca.certificate_pem,
                certificate_pem=signed,
                expires_s=issued.expires_s,
            )
        )

    async def revoke(self, serial: Serial, who: Who, asked: MachineRequest = _NOTHING_SAID) -> Response:
        """Revoke a certificate. A machine without another one is removed until it joins again."""
        command = RevokeCertificate(serial=serial, why=asked.why or "revoked", by=recorded(who, asked.by))
        return done(await self._context.ask(command))

    def _welcomed(
        self, enrolment: Enrolment, said: JoinFinish, role: Role, token: str, *, now_s: float, address: str
    ) -> UseInvite:
        """Return the command that redeems an invitation, with the certificate or token."""
        digest = request_digest(said)
        joined = JoinFinishResponse(name=said.name, role=role, ca_pem=enrolment.ca.certificate_pem)
        if role is Role.WORKER:
            until_s = self._context.queue.certificate_end_s(said.name, now_s)
            signed, issued = enrolment.sign(said.csr_pem, said.name, now_s=now_s, until_s=until_s)
            joined = joined.model_copy(update={"certificate_pem": signed, "expires_s": issued.expires_s})
            return UseInvite(
                id=said.id, request=digest, answer=to_json(joined).decode(), certificate=issued, address=address
            )
        held = ApiTokenRecord(
            id=make_token_id(),
            name=said.name,
            role=role.value,
            sha256=token_digest(token.encode()),
            issued_s=now_s,
            expires_s=now_s + LIFE_S,
        )
        joined = joined.model_copy(update={"expires_s": held.expires_s})
        return UseInvite(id=said.id, request=digest, answer=to_json(joined).decode(), token=held, address=address)

    def _opened(self) -> Enrolment:
        if self._enrolment is None:
            hint = "start it with --listen 0.0.0.0 (TLS from its own CA); workers on this machine need not join"
            raise Refused("this coordinator listens on its own machine only", hint=hint)
        return self._enrolment

    def _count_wrong(self, id: str, request: Request) -> None:
        """Limit wrong proofs: by address and code, by address, and of all. Right ones are not limited."""
        now_s, address = self._context.clock.monotonic_s(), source_of(_peer(request).address)
        limits = (
            (self._wrong_codes, f"{address} with {id}"),
            (self._joins, address),
            (self._all_joins, "all addresses"),
        )
        for guesses, key in limits:
            guesses.check(key, now_s)
        for guesses, key in limits:
            guesses.spend(key, now_s)

    def _standing(self) -> TrustState:
        return self._context.queue.standing()


def _peer(request: Request) -> Peer:
    found: Peer = request.scope.get(PEER, UNKNOWN)
    return found


def _with_token(text: str, token: str) -> JoinFinishResponse:
    """Return a response with its token, which is derived each time and stored nowhere."""
    return from_json(JoinFinishResponse, text.encode()).model_copy(update={"token": token})


TokenId = Annotated[str, Path(description="A token's id", min_length=1, max_length=16)]


class TokenRoutes:
    """Routes for admins about users' tokens: make, list, rotate, revoke."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.router = RouteTable("tokens")
        add = self.router.add
        add("/v1/tokens", self.make, methods=["POST"], response_model=TokenResponse)
        add("/v1/tokens", self.all, response_model=TokenList)
        add("/v1/tokens/{id}/rotate", self.rotate, methods=["POST"], response_model=TokenResponse)
        add("/v1/tokens/{id}/revoke", self.revoke, methods=["POST"], response_model=DoneView)

    async def make(self, asked: TokenRequest, who: Who) -> Response:
        """Make a token. It is shown once (default lifetime: one year)."""
        if asked.role is Role.WORKER:
            raise BadInput("a machine has a certificate, not a token", hint="`stoker machines invite`")
        if not is_node_name(asked.name):
            raise BadInput(f"{asked.name[:100]!r} is not a valid name", hint=NODE_NAME_RULE)
        token = make_token()
        held = self._held(token, asked.name, asked.role, recorded(who, ""))
        life_s = None if asked.life_s == NEVER else asked.life_s or LIFE_S
        await self._context.ask(MakeToken(token=held, life_s=life_s))
        return self._made(token, held.sha256)

    async def all(self) -> Response:
        """List tokens, newest first; only their digests are stored."""
        found = sorted(self._context.queue.standing().tokens.values(), key=lambda one: -one.issued_s)
        return answer(TokenList(tokens=tuple(TokenView.model_validate(one, from_attributes=True) for one in found)))

    async def rotate(self, id: TokenId, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Replace a token's secret; the old one stops working."""
        token = make_token()
        # Name and role are the old one's.
        held = self._held(token, "", Role.READ, "")
        await self._context.ask(RotateToken(id=id, new=held, by=recorded(who, _by(asked))))
        return self._made(token, held.sha256)

    async def revoke(self, id: TokenId, who: Who, asked: ChangeRequest | None = None) -> Response:
        """Revoke a token."""
        return done(await self._context.ask(RevokeToken(id=id, by=recorded(who, _by(asked)))))

    def _held(self, token: str, name: str, role: Role, by: str) -> ApiTokenRecord:
        return ApiTokenRecord(
            id=make_token_id(), name=name, role=role.value, sha256=token_digest(token.encode()), by=by
        )

    def _made(self, token: str, digest: str) -> Response:
        held = self._context.queue.standing().tokens[digest]
        return answer(TokenResponse(token=token, view=TokenView.model_validate(held, from_attributes=True)))


def _by(asked: ChangeRequest | None) -> str:
    return asked.by if asked is not None else ""
