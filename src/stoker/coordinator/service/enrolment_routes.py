"""Routes by which machines and people come to belong to the fleet, and cease to: invitations, joining, certificates."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from stoker.coordinator.authority.enrolment import Enrolment
from stoker.coordinator.authority.guesses import Guesses, Limit, source_of
from stoker.coordinator.authority.invites import (
    MOST_FAILURES_EACH,
    Verdict,
    judge_finish,
    key_of,
    not_invited,
    request_digest,
    server_nonce,
)
from stoker.coordinator.authority.standing import HeldToken, Invite, IssuedCertificate, Standing
from stoker.coordinator.authority.tokens import LIFE_S, make_token_id, token_digest, token_of
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.trust_commands import (
    FailInvite,
    IssueCertificate,
    MakeInvite,
    RevokeCertificate,
    UseInvite,
    WithdrawInvite,
)
from stoker.coordinator.service.access import UNKNOWN, Peer
from stoker.coordinator.service.answers import answer, done
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import PEER, Who, recorded
from stoker.model.errors import BadInput, Refused
from stoker.model.fleet_errors import Conflict, NotAllowed
from stoker.model.names import NODE_NAME_RULE, is_node_name
from stoker.model.principals import Role
from stoker.wire.asking import DoneView, MachineAsk
from stoker.wire.codec import from_json, to_json
from stoker.wire.enrolling import (
    CertificateList,
    CertificateView,
    InviteAsk,
    Invited,
    InviteList,
    InviteView,
    JoinBegin,
    JoinBegun,
    Joined,
    JoinFinish,
    JoinPurpose,
    LiveCertificates,
    RenewCertificate,
)
from stoker.wire.join_proofs import begin_proof, join_key, make_code, make_invite_id, seal

_TRIES = 20
"""At a free id for an invitation."""
_BY_ADDRESS = Limit(burst=20, each_s=6.0)
_BY_ALL = Limit(burst=200, each_s=0.5)
_WRONG_CODES = Limit(burst=MOST_FAILURES_EACH, each_s=3600.0)
_NOTHING_SAID = MachineAsk()

InviteId = Annotated[str, Path(pattern=r"^[0-9A-Z]{2,8}$", description="An invitation's id")]
Serial = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="A certificate's number")]


class EnrolmentRoutes:
    """Answers them. Without an authority (it listens on loopback alone) nobody can be invited."""

    def __init__(self, office: Office, enrolment: Enrolment | None) -> None:
        self._office = office
        self._enrolment = enrolment
        self._joins, self._all_joins = Guesses(_BY_ADDRESS), Guesses(_BY_ALL)
        self._wrong_codes = Guesses(_WRONG_CODES)
        self.router = APIRouter(tags=["enrolment"])
        add = self.router.add_api_route
        add("/v1/invites", self.invite, methods=["POST"], response_model=Invited)
        add("/v1/invites", self.invites, response_model=InviteList)
        add("/v1/invites/{id}", self.withdraw, methods=["DELETE"], response_model=DoneView)
        add("/v1/join/begin", self.begin, methods=["POST"], response_model=JoinBegun)
        add("/v1/join/finish", self.finish, methods=["POST"], response_model=Joined)
        add("/v1/certificates", self.certificates, response_model=CertificateList)
        add("/v1/certificates/live", self.live_certificates, response_model=LiveCertificates)
        add("/v1/certificates/renew", self.renew, methods=["POST"], response_model=Joined)
        add("/v1/certificates/{serial}/revoke", self.revoke, methods=["POST"], response_model=DoneView)

    async def invite(self, asked: InviteAsk, who: Who) -> Response:
        """Let a machine (role operate) or a person (role admin) join. The code is shown once."""
        if asked.role is not Role.WORKER and not who.may(Role.ADMIN):
            raise NotAllowed("only an admin invites people", hint="an operator invites machines", role=who.role.value)
        if asked.name and not is_node_name(asked.name):
            raise BadInput(f"{asked.name[:100]!r} can't be a name", hint=NODE_NAME_RULE)
        enrolment = self._opened()
        for _ in range(_TRIES):
            code = make_code(make_invite_id(secrets.token_bytes(2)), secrets.token_bytes(8))
            # Slow on purpose, so not in everybody's way.
            key = await self._office.keep(join_key, code)
            by = recorded(who, "")
            invite = Invite(id=code.id, role=asked.role.value, name=asked.name, key=key.hex(), by=by)
            try:
                made: Done = await self._office.ask(MakeInvite(invite=invite, life_s=asked.life_s))
            except Conflict:
                continue
            names = enrolment.names()
            invited = Invited(
                id=code.id,
                code=code.text(),
                role=asked.role,
                name=asked.name,
                expires_s=made.data["expires_s"],
                url=f"https://{names[0]}",
                names=names,
            )
            return answer(invited)
        raise Refused("no id is free for another invitation", hint="try again")

    async def invites(self) -> Response:
        """List invitations, newest first; their codes are not kept."""
        found = sorted(self._standing().invites.values(), key=lambda one: -one.made_s)
        return answer(InviteList(invites=tuple(_invite_view(one) for one in found)))

    async def withdraw(self, id: InviteId, who: Who) -> Response:
        """Take an invitation back."""
        return done(await self._office.ask(WithdrawInvite(id=id, by=recorded(who, ""))))

    async def begin(self, asked: JoinBegin) -> Response:
        """Show the CA, and prove by the code's key that it is the one that was meant.

        Whoever has not the code learns nothing else: every id, also one of no invitation, is answered alike.
        """
        enrolment, now_s = self._opened(), self._office.clock.wall_s()
        ca, invite = enrolment.ca, self._standing().invites.get(asked.id)
        nonces = {"nonce": asked.nonce, "server_nonce": server_nonce(ca, asked.id, asked.nonce, now_s)}
        key = key_of(ca, invite, asked.id)
        purpose = JoinPurpose(role=Role(invite.role), name=invite.name) if invite else JoinPurpose(role=Role.WORKER)
        return answer(
            JoinBegun(
                ca_pem=ca.certificate_pem,
                nonce=nonces["server_nonce"],
                proof=begin_proof(key, **nonces, ca_pem=ca.certificate_pem, role=Role.WORKER, name=""),
                sealed=seal(key, to_json(purpose).decode(), **nonces),
                version=self._office.about.version,
                server_s=now_s,
            )
        )

    async def finish(self, said: JoinFinish, request: Request) -> Response:
        """Let somebody in who proves to have the code: a machine gets a certificate, a person a token."""
        enrolment, now_s = self._opened(), self._office.clock.wall_s()
        invite = self._standing().invites.get(said.id)
        judged = judge_finish(enrolment.ca, invite, said, now_s)
        if judged.verdict is Verdict.WRONG:
            self._count_wrong(said.id, request)
            await self._office.ask(FailInvite(id=said.id, address=_peer(request).address))
        if judged.error is not None or invite is None:
            raise judged.error or not_invited(invite, now_s)
        digest, role = request_digest(said), Role(invite.role)
        token = token_of(enrolment.ca.derive("stoker/join/token/1", digest)) if role is not Role.WORKER else ""
        if judged.verdict is Verdict.REPEAT:
            return answer(_with_token(invite.answer, token))
        use = self._welcomed(enrolment, said, role, token, now_s=now_s, address=_peer(request).address)
        used: Done = await self._office.ask(use)
        return answer(_with_token(used.data["answer"], token))

    async def certificates(self) -> Response:
        """List machines' certificates that have not expired."""
        found = sorted(self._standing().certificates.values(), key=lambda one: (one.name, one.issued_s))
        return answer(CertificateList(certificates=tuple(_certificate_view(one) for one in found)))

    async def live_certificates(self) -> Response:
        """Give the numbers of machines' certificates that count now."""
        now_s = self._office.clock.wall_s()
        found = self._standing().certificates.values()
        return answer(LiveCertificates(serials=tuple(one.serial for one in found if one.is_live(now_s))))

    async def renew(self, asked: RenewCertificate, who: Who, request: Request) -> Response:
        """Give a machine its next certificate, under the name of the one that it shows."""
        enrolment, shown = self._opened(), _peer(request).certificate
        if shown is None:
            raise NotAllowed("only a machine that shows its certificate gets the next one", hint="join with a code")
        now_s = self._office.clock.wall_s()
        signed, issued = enrolment.sign(asked.csr_pem, who.name, now_s=now_s)
        await self._office.ask(IssueCertificate(certificate=issued, present=shown.serial))
        return answer(
            Joined(
                name=who.name,
                role=Role.WORKER,
                ca_pem=enrolment.ca.certificate_pem,
                certificate_pem=signed,
                expires_s=issued.expires_s,
            )
        )

    async def revoke(self, serial: Serial, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Take a certificate back. A machine that has no other is out of the fleet until it joins again."""
        command = RevokeCertificate(serial=serial, why=asked.why or "revoked", by=recorded(who, asked.by))
        return done(await self._office.ask(command))

    def _welcomed(
        self, enrolment: Enrolment, said: JoinFinish, role: Role, token: str, *, now_s: float, address: str
    ) -> UseInvite:
        """Make what somebody gets who joins now."""
        digest = request_digest(said)
        joined = Joined(name=said.name, role=role, ca_pem=enrolment.ca.certificate_pem)
        if role is Role.WORKER:
            signed, issued = enrolment.sign(said.csr_pem, said.name, now_s=now_s)
            joined = joined.model_copy(update={"certificate_pem": signed, "expires_s": issued.expires_s})
            return UseInvite(
                id=said.id, request=digest, answer=to_json(joined).decode(), certificate=issued, address=address
            )
        held = HeldToken(
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
            hint = "start it with --listen 0.0.0.0 (TLS from its own CA); on this machine nothing needs to join"
            raise Refused("this coordinator listens to its own machine alone", hint=hint)
        return self._enrolment

    def _count_wrong(self, id: str, request: Request) -> None:
        """Limit wrong proofs: those of one address with one code, of one address, and of all. Right ones are not."""
        now_s, address = self._office.clock.monotonic_s(), source_of(_peer(request).address)
        limits = (
            (self._wrong_codes, f"{address} with {id}"),
            (self._joins, address),
            (self._all_joins, "all addresses"),
        )
        for guesses, key in limits:
            guesses.check(key, now_s)
        for guesses, key in limits:
            guesses.spend(key, now_s)

    def _standing(self) -> Standing:
        return self._office.queue.standing()


def _peer(request: Request) -> Peer:
    found: Peer = request.scope.get(PEER, UNKNOWN)
    return found


def _with_token(text: str, token: str) -> Joined:
    """Give the answer to whoever joined. The token is derived anew each time: it is stored nowhere."""
    return from_json(Joined, text.encode()).model_copy(update={"token": token})


def _invite_view(one: Invite) -> InviteView:
    return InviteView(
        id=one.id,
        role=Role(one.role),
        name=one.name,
        made_s=one.made_s,
        expires_s=one.expires_s,
        used_s=one.used_s,
        by=one.by,
    )


def _certificate_view(one: IssuedCertificate) -> CertificateView:
    return CertificateView(
        serial=one.serial,
        name=one.name,
        issued_s=one.issued_s,
        expires_s=one.expires_s,
        revoked_s=one.revoked_s,
        why=one.why,
    )
