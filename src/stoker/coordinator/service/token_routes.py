"""Routes for admins about people's tokens: make, list, put a new one in an old one's place, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from stoker.coordinator.authority.standing import HeldToken
from stoker.coordinator.authority.tokens import LIFE_S, make_token, make_token_id, token_digest
from stoker.coordinator.queue.trust_commands import MakeToken, RevokeToken, RotateToken
from stoker.coordinator.service.answers import answer, done
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who, recorded
from stoker.model.errors import BadInput
from stoker.model.names import NODE_NAME_RULE, is_node_name
from stoker.model.principals import Role
from stoker.wire.asking import DoneView, JobAsk
from stoker.wire.enrolling import NEVER, TokenAsk, TokenList, TokenMade, TokenView

TokenId = Annotated[str, Path(description="A token's id", min_length=1, max_length=16)]


class TokenRoutes:
    """Answers them."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self.router = APIRouter(tags=["tokens"])
        add = self.router.add_api_route
        add("/v1/tokens", self.make, methods=["POST"], response_model=TokenMade)
        add("/v1/tokens", self.all, response_model=TokenList)
        add("/v1/tokens/{id}/rotate", self.rotate, methods=["POST"], response_model=TokenMade)
        add("/v1/tokens/{id}/revoke", self.revoke, methods=["POST"], response_model=DoneView)

    async def make(self, asked: TokenAsk, who: Who) -> Response:
        """Make a token. It is shown once, and lasts a year by default."""
        if asked.role is Role.WORKER:
            raise BadInput("a machine has a certificate, not a token", hint="`stoker machines invite`")
        if not is_node_name(asked.name):
            raise BadInput(f"{asked.name[:100]!r} can't be a name", hint=NODE_NAME_RULE)
        token = make_token()
        held = self._held(token, asked.name, asked.role, recorded(who, ""))
        life_s = None if asked.life_s == NEVER else asked.life_s or LIFE_S
        await self._office.ask(MakeToken(token=held, life_s=life_s))
        return self._made(token, held.sha256)

    async def all(self) -> Response:
        """List tokens, newest first; only their digests are kept."""
        found = sorted(self._office.queue.standing().tokens.values(), key=lambda one: -one.issued_s)
        return answer(TokenList(tokens=tuple(_view(one) for one in found)))

    async def rotate(self, id: TokenId, who: Who, asked: JobAsk | None = None) -> Response:
        """Put a new token in the place of an old one, which ends now."""
        token = make_token()
        # Name and role are the old one's.
        held = self._held(token, "", Role.READ, "")
        await self._office.ask(RotateToken(id=id, new=held, by=recorded(who, _by(asked))))
        return self._made(token, held.sha256)

    async def revoke(self, id: TokenId, who: Who, asked: JobAsk | None = None) -> Response:
        """Take a token back."""
        return done(await self._office.ask(RevokeToken(id=id, by=recorded(who, _by(asked)))))

    def _held(self, token: str, name: str, role: Role, by: str) -> HeldToken:
        return HeldToken(id=make_token_id(), name=name, role=role.value, sha256=token_digest(token.encode()), by=by)

    def _made(self, token: str, digest: str) -> Response:
        return answer(TokenMade(token=token, view=_view(self._office.queue.standing().tokens[digest])))


def _view(one: HeldToken) -> TokenView:
    return TokenView(
        id=one.id,
        name=one.name,
        role=Role(one.role),
        issued_s=one.issued_s,
        expires_s=one.expires_s,
        revoked_s=one.revoked_s,
        last_used_s=one.last_used_s,
        by=one.by,
    )


def _by(asked: JobAsk | None) -> str:
    return asked.by if asked is not None else ""
