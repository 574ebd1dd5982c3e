"""Whatever is asked, renewed, handed over, killed and waited for: the ledger agrees with a small model of it.

The model knows who holds what and who waits, in plain dictionaries, and decides by looking at every device anew.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from stoker.core.device import GIB
from stoker.devices.ledger.ledger import QueuedRequest
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, DevicesBusy, NeverFits, Reservation
from stoker.host.identity import Liveness, ProcessIdentity
from tests.lengths import examples
from tests.unit.devices.ledger.lab import Lab, someone

DEVICES = tuple(
    CandidateDevice(uuid=f"GPU-{name}", total_bytes=total * GIB) for name, total in (("a", 20), ("b", 20), ("c", 10))
)
USABLE = {device.uuid: device.total_bytes * 85 // 100 // 2**20 * 2**20 for device in DEVICES}
TOTAL = {device.uuid: device.total_bytes for device in DEVICES}
LEASE_S = 90.0
SEEN_S = 30.0

asks = st.builds(
    lambda uuids, size, count, share, base: DeviceRequest(
        job="job",
        devices=tuple(device for device in DEVICES if device.uuid[-1] in uuids),
        count=count,
        vram_bytes=size * GIB,
        may_share=share,
        base="base" if base and size > 2 else "",
        base_bytes=2 * GIB if base and size > 2 else 0,
    ),
    uuids=st.sets(st.sampled_from("abc"), min_size=1),
    size=st.integers(0, 21),
    count=st.integers(1, 2),
    share=st.booleans(),
    base=st.booleans(),
)


class Model:
    """Who holds what, who waits."""

    def __init__(self) -> None:
        self.holds: dict[str, dict[str, Any]] = {}
        self.late: dict[str, dict[str, Any]] = {}
        """Whose lease was past; a renewal may still come."""
        self.line: dict[int, dict[str, Any]] = {}

    def charged(self, uuid: str, more: dict[str, Any] | None = None) -> int:
        total, base = 0, 0
        for one in [*self.holds.values(), *([more] if more else [])]:
            if uuid in one["uuids"]:
                taken = max(one["size"], one["measured"].get(uuid, 0))
                total += taken - one["base"]
                base = max(base, one["base"])
        return total + base

    def stands(self, late: dict[str, Any]) -> bool:
        """Return whether what was taken for gone fits beside what was promised since."""
        for uuid in late["uuids"]:
            on_it = [one for one in self.holds.values() if uuid in one["uuids"]]
            if any(uuid in one["alone"] for one in on_it) or (on_it and uuid in late["alone"]):
                return False
            own = sum(one["size"] - one["base"] for one in (late, *on_it))
            if uuid not in late["alone"] and own + max(one["base"] for one in (late, *on_it)) > USABLE[uuid]:
                return False
        return True

    def can_ever(self, ask: DeviceRequest, uuid: str) -> bool:
        return ask.vram_bytes <= TOTAL[uuid]

    def shares(self, ask: DeviceRequest, uuid: str) -> bool:
        return ask.may_share and 0 < ask.vram_bytes <= USABLE[uuid]

    def fits(self, ask: DeviceRequest, uuid: str, before: int | None, now_s: float) -> bool:
        for number, ticket in self.line.items():
            is_ahead = before is None or number < before
            if is_ahead and uuid in ticket["uuids"] and now_s < ticket["seen_s"] + SEEN_S:
                return False
        on_it = [one for one in self.holds.values() if uuid in one["uuids"]]
        if any(uuid in one["alone"] for one in on_it) or (on_it and not self.shares(ask, uuid)):
            return False
        wanted = {"uuids": (uuid,), "size": ask.vram_bytes, "base": ask.base_bytes, "measured": {}}
        return not self.shares(ask, uuid) or self.charged(uuid, wanted) <= USABLE[uuid]

    def expects(self, ask: DeviceRequest, before: int | None, now_s: float) -> type:
        could = [device.uuid for device in ask.devices if self.can_ever(ask, device.uuid)]
        if len(could) < ask.count:
            return NeverFits
        fitting = [uuid for uuid in could if self.fits(ask, uuid, before, now_s)]
        return Reservation if len(fitting) >= ask.count else DevicesBusy


class LedgerMachine(RuleBasedStateMachine):
    rooms = Bundle("rooms")
    places = Bundle("places")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.lab = Lab(self.folder)
        self.model = Model()
        self.pid = 100

    def teardown(self) -> None:
        self.lab.close()
        shutil.rmtree(self.folder)

    @property
    def now_s(self) -> float:
        return self.lab.clock.monotonic_s()

    def owner(self, *, is_seen: bool) -> ProcessIdentity:
        self.pid += 1
        identity = someone(self.pid)
        self.lab.says[identity] = Liveness.ALIVE if is_seen else Liveness.UNKNOWN
        return identity

    def remember(self, held: Reservation, ask: DeviceRequest, owner: ProcessIdentity) -> None:
        assert len(held.uuids) == ask.count
        self.model.holds[held.id] = {
            "uuids": held.uuids,
            "size": ask.vram_bytes,
            "base": ask.base_bytes,
            "alone": {uuid for uuid in held.uuids if not self.model.shares(ask, uuid)},
            "measured": {},
            "owner": owner,
            "renewed_s": self.now_s,
        }

    def forget_the_gone(self) -> None:
        for key, one in list(self.model.holds.items()):
            says = self.lab.says[one["owner"]]
            is_late = says is Liveness.UNKNOWN and self.now_s >= one["renewed_s"] + LEASE_S
            if says is Liveness.GONE or is_late:
                del self.model.holds[key]
            if is_late:
                self.model.late[key] = one

    @rule(target=rooms, ask=asks, is_seen=st.booleans())
    def reserve(self, ask: DeviceRequest, is_seen: bool) -> Any:
        owner = self.owner(is_seen=is_seen)
        self.forget_the_gone()
        expected = self.model.expects(ask, None, self.now_s)
        answer = (
            self.lab.another().reserve(_for(ask, owner)) if self.pid % 2 else self.lab.ledger.reserve(_for(ask, owner))
        )
        assert type(answer) is expected, answer
        if not isinstance(answer, Reservation):
            return multiple()
        self.remember(answer, ask, owner)
        return answer

    @rule(room=consumes(rooms))
    def release(self, room: Reservation) -> None:
        self.lab.ledger.release(room)
        self.model.holds.pop(room.id, None)
        self.model.late.pop(room.id, None)

    @rule(room=rooms)
    def renew(self, room: Reservation) -> None:
        self.forget_the_gone()
        # Only who holds it can renew it: what another ledger took is not this one's.
        was_ours = self.is_ours(room)
        lost = self.lab.ledger.renew(room)
        late = self.model.late.pop(room.id, None)
        if not was_ours:
            assert lost == (room,)
        elif room.id in self.model.holds:
            assert lost == ()
            self.model.holds[room.id]["renewed_s"] = self.now_s
        elif late is not None:
            assert (lost == ()) is self.model.stands(late)
            if not lost:
                self.model.holds[room.id] = {**late, "renewed_s": self.now_s}

    @rule(room=rooms, is_seen=st.booleans())
    def hand_over(self, room: Reservation, is_seen: bool) -> None:
        self.forget_the_gone()
        if self.is_ours(room) and room.id in self.model.holds:
            child = self.owner(is_seen=is_seen)
            self.lab.ledger.hand_over(room, child)
            self.model.holds[room.id] |= {"owner": child, "renewed_s": self.now_s}

    @rule(room=rooms, size=st.integers(0, 12))
    def measure(self, room: Reservation, size: int) -> None:
        self.forget_the_gone()
        if self.is_ours(room) and room.id in self.model.holds:
            uuid = room.uuids[0]
            self.lab.ledger.note_measured(room, {uuid: size * GIB})
            known = self.model.holds[room.id]
            known["measured"][uuid] = max(size * GIB, known["measured"].get(uuid, 0))
            known["renewed_s"] = self.now_s

    @rule(room=consumes(rooms))
    def kill(self, room: Reservation) -> None:
        self.forget_the_gone()
        if room.id in self.model.holds:
            self.lab.says[self.model.holds[room.id]["owner"]] = Liveness.GONE

    @rule(target=places, ask=asks)
    def line_up(self, ask: DeviceRequest) -> Any:
        owner = self.owner(is_seen=True)
        place = self.lab.place(_for(ask, owner))
        return (place, owner)

    @rule(target=rooms, waiting=places)
    def look(self, waiting: tuple[QueuedRequest, ProcessIdentity]) -> Any:
        place, owner = waiting
        self.forget_the_gone()
        if place in getattr(self, "served", set()):
            return multiple()
        number = next((number for number, one in self.model.line.items() if one["place"] is place), None)
        expected = self.model.expects(place.ask, number, self.now_s)
        answer = place.look()
        assert type(answer) is expected, answer
        if isinstance(answer, DevicesBusy):
            assert answer.number is not None
            uuids = [one.uuid for one in place.ask.devices if self.model.can_ever(place.ask, one.uuid)]
            known = self.model.line.setdefault(answer.number, {"place": place, "uuids": uuids, "seen_s": self.now_s})
            if self.now_s >= known["seen_s"] + SEEN_S / 2:
                known["seen_s"] = self.now_s
            return multiple()
        self.model.line.pop(number, None) if number is not None else None
        self.served = {*getattr(self, "served", set()), place}
        if isinstance(answer, NeverFits):
            return multiple()
        self.remember(answer, place.ask, owner)
        return answer

    @rule(waiting=consumes(places))
    def leave(self, waiting: tuple[QueuedRequest, ProcessIdentity]) -> None:
        waiting[0].leave()
        self.model.line = {number: one for number, one in self.model.line.items() if one["place"] is not waiting[0]}

    @rule(seconds=st.sampled_from([1.0, 14.0, 20.0, 95.0]), jump_s=st.sampled_from([0.0, -1e6, 1e6]))
    def pass_time(self, seconds: float, jump_s: float) -> None:
        self.lab.clock.advance(seconds)
        self.lab.clock.jump(jump_s)

    @invariant()
    def nobody_is_promised_what_another_one_has(self) -> None:
        self.forget_the_gone()
        state = self.lab.another().state(DEVICES)
        for device in state.devices:
            theirs = {holder.entry.id for holder in device.holders}
            assert theirs == {key for key, one in self.model.holds.items() if device.device.uuid in one["uuids"]}
            if device.is_taken:
                assert len(device.holders) == 1
                continue
            promised = sum(holder.share.promised_bytes - holder.entry.base_bytes for holder in device.holders)
            base = max((holder.entry.base_bytes for holder in device.holders), default=0)
            assert promised + base <= USABLE[device.device.uuid]
            assert device.reserved_bytes == self.model.charged(device.device.uuid)
        assert [one.ticket.number for one in state.waiting] == sorted(self.model.line)

    def is_ours(self, room: Reservation) -> bool:
        return room.id in self.lab.ledger._ours


def _for(ask: DeviceRequest, owner: ProcessIdentity) -> DeviceRequest:
    from stoker.core.frozen import changed

    return changed(ask, owner=owner)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(28, 100), stateful_step_count=30, deadline=None)
