"""Routes for people about machines: list them, close them to work, open them again, forget them."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from stoker.coordinator.queue.commands import CloseMachine, Closing, ForgetMachine, OpenMachine
from stoker.coordinator.service.answers import MachineName, answer, done
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who, recorded
from stoker.model.errors import NotFound
from stoker.model.frozen import changed
from stoker.model.principals import Principal
from stoker.model.suggest import did_you_mean
from stoker.wire.asking import DoneView, MachineAsk, MachineList
from stoker.wire.views import MachineView

_NOTHING_SAID = MachineAsk()


class MachineRoutes:
    """Answers them."""

    def __init__(self, office: Office, *, on_forgotten: Callable[[str], None]) -> None:
        """Answer them; `on_forgotten` hears of a machine that no longer belongs to the fleet."""
        self._office = office
        self._on_forgotten = on_forgotten
        self.router = APIRouter(tags=["machines"])
        add = self.router.add_api_route
        add("/v1/machines", self.all, response_model=MachineList)
        add("/v1/machines/{name}", self.one, response_model=MachineView)
        for verb, act in (
            ("drain", self.drain),
            ("cordon", self.cordon),
            ("pause", self.pause),
            ("open", self.open),
            ("forget", self.forget),
        ):
            add(f"/v1/machines/{{name}}/{verb}", act, methods=["POST"], response_model=DoneView)

    async def all(self) -> Response:
        """List the machines."""
        return answer(MachineList(machines=await self._office.read(self._office.views.machines, "")))

    async def one(self, name: MachineName) -> Response:
        """Give one machine."""
        office = self._office
        found = await office.read(office.views.machines, name)
        if not found:
            known = [machine.name for machine in await office.read(office.views.machines, "")]
            hint = did_you_mean(name, known) or "`stoker machines` lists them"
            raise NotFound(f"there is no machine {name!r}", hint=hint)
        return answer(found[0])

    async def drain(self, name: MachineName, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Give a machine no more work; what runs there finishes."""
        return await self._close(name, Closing.DRAIN, asked, who)

    async def cordon(self, name: MachineName, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Give a machine, or some of its devices, no more work: it is mistrusted."""
        return await self._close(name, Closing.CORDON, asked, who)

    async def pause(self, name: MachineName, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Give a machine back to its owner: what runs there goes back to the queue."""
        return await self._close(name, Closing.PAUSE, asked, who)

    async def open(self, name: MachineName, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Let a machine, or some of its devices, have work again."""
        return done(
            await self._office.ask(OpenMachine(machine=name, devices=asked.devices, by=recorded(who, asked.by)))
        )

    async def forget(self, name: MachineName, who: Who, asked: MachineAsk = _NOTHING_SAID) -> Response:
        """Remove a machine. One that joined with a code is refused from now on, and what it holds is lost at once."""
        command = ForgetMachine(machine=name, is_forced=asked.is_forced, by=recorded(who, asked.by))
        forgotten = await self._office.ask(command)
        self._on_forgotten(name)
        return done(forgotten)

    async def _close(self, name: str, how: Closing, asked: MachineAsk, who: Principal) -> Response:
        command = CloseMachine(
            machine=name, how=how, devices=asked.devices, why=asked.why, for_s=asked.for_s, by=recorded(who, asked.by)
        )
        did = await self._office.ask(command)
        return done(changed(did, notes=(*did.notes, *await self._unknown_devices(name, asked.devices))))

    async def _unknown_devices(self, machine: str, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Say which devices the machine does not report now: one that fell off the bus, or one that was misspelt."""
        if not devices:
            return ()
        office = self._office
        there = [
            str(one.get("uuid", ""))
            for view in await office.read(office.views.machines, machine)
            for one in view.devices
        ]
        return tuple(
            f"{machine} has no device {uuid} now; {did_you_mean(uuid, there) or '`stoker machines show` lists them'}"
            for uuid in devices
            if uuid not in there
        )
