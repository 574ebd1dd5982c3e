"""Routes about hooks: who is told of events elsewhere. Admins see and make all; a submitter one for jobs alone."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Response

from stoker.coordinator.notifying.addresses import may_be_told
from stoker.coordinator.notifying.choosing import trial
from stoker.coordinator.notifying.notifier import Notifier
from stoker.coordinator.queue.health_commands import AddHook, CloseHook
from stoker.coordinator.queue.reading.health import HookRow
from stoker.coordinator.service.answers import answer, done
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who, recorded
from stoker.host.http.addresses import is_literal, is_this_computer, read_address, shown
from stoker.model.errors import BadInput, NotFound
from stoker.model.fleet_errors import NotAllowed
from stoker.model.principals import Role
from stoker.wire.asking import DoneView
from stoker.wire.health import ALL_WORDS, HookAsk, HookList, HookMade, HookTried, HookView

HookId = Annotated[int, Path(description="A hook's number", ge=1, le=(1 << 31) - 1)]
_SECRET_BYTES = 32


class HookRoutes:
    """Answers them."""

    def __init__(self, office: Office, notifier: Notifier | None) -> None:
        self._office = office
        self._notifier = notifier
        self.router = APIRouter(tags=["hooks"])
        add = self.router.add_api_route
        add("/v1/hooks", self.all, response_model=HookList)
        add("/v1/hooks", self.make, methods=["POST"], response_model=HookMade)
        add("/v1/hooks/{id}", self.close, methods=["DELETE"], response_model=DoneView)
        add("/v1/hooks/{id}/test", self.test, methods=["POST"], response_model=HookTried)

    async def all(self) -> Response:
        """List the hooks, without what signs their messages."""
        hooks = await self._office.read(self._office.reader.hooks)
        return answer(HookList(hooks=tuple(_view(hook) for hook in hooks)))

    async def make(self, asked: HookAsk, who: Who) -> Response:
        """Begin to tell somebody of events. What signs the messages is in the answer, and never again."""
        is_admin = who.may(Role.ADMIN)
        if not asked.jobs and not is_admin:
            raise NotAllowed("only an admin is told of everything", hint="name the jobs: `stoker submit --notify URL`")
        check_url(asked.url, is_inner=is_admin)
        unknown = [word for word in asked.on if word not in ALL_WORDS]
        if unknown:
            raise BadInput(f"nothing is called {unknown[0][:40]!r}", hint=f"there are {', '.join(ALL_WORDS)}")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        command = AddHook(
            url=asked.url, secret=secret, kinds=asked.on, jobs=asked.jobs, is_inner=is_admin, by=recorded(who, asked.by)
        )
        made = await self._office.ask(command)
        return answer(HookMade(hook=_view(await self._find(made.data["id"])), secret=secret))

    async def close(self, id: HookId, who: Who) -> Response:
        """Tell a hook nothing more."""
        by = recorded(who, "")
        return done(await self._office.ask(CloseHook(id=id, why=f"closed by {by or 'an admin'}", by=by)))

    async def test(self, id: HookId) -> Response:
        """Send a message that says nothing, once, and say what became of it."""
        hook = await self._find(id)
        if hook.closed_s is not None:
            raise BadInput(f"hook {id} is closed", hint="`stoker admin notify add URL` makes a new one")
        if self._notifier is None:
            raise BadInput("this coordinator tells nobody of events")
        trouble = await self._office.keep(self._notifier.send, hook, trial(id, self._office.clock.wall_s()))
        return answer(HookTried(is_delivered=not trouble, message=trouble))

    async def _find(self, id: int) -> HookRow:
        for hook in await self._office.read(self._office.reader.hooks):
            if hook.id == id:
                return hook
        raise NotFound(f"there is no hook {id}", hint="`stoker admin notify` lists them")


def check_url(url: str, *, is_inner: bool) -> None:
    """Refuse what can't be told anything; a name's address is looked at when it is connected to."""
    address = read_address(url)
    host = address.origin.host
    if address.authorization:
        raise BadInput("no password stands in a hook's address", hint="its messages are signed: check the signature")
    if is_this_computer(host):
        if not is_inner:
            raise NotAllowed(
                "only an admin's hook leads to the coordinator's own machine", hint="name a public address"
            )
    elif is_literal(host) and not may_be_told(host, is_inner=is_inner):
        raise NotAllowed(f"a hook may not lead to {host}", hint="private addresses need an admin, some are never told")


def _view(hook: HookRow) -> HookView:
    return HookView(
        id=hook.id,
        url=shown(hook.url),
        on=hook.words,
        jobs=len(hook.jobs),
        cursor=hook.cursor,
        failures=hook.failures,
        last_error=hook.last_error,
        made_s=hook.made_s,
        closed_s=hook.closed_s,
        by=hook.by,
    )
