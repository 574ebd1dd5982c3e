"""Devices that vanish while a worker lives are no longer offered, and offered again when they are back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.capability import Capability
from stoker.core.device import Backend, Device, TriState, TriStateAnswer
from stoker.core.errors import NetworkFailed
from stoker.core.frozen import changed
from stoker.devices.probes.inventory import find_devices
from stoker.worker.machine_checks import (
    CONFIRM_S,
    EVERY_S,
    DeviceChange,
    DeviceRedetection,
    MachineOffer,
    Precheck,
    compare_devices,
)
from tests.fakes.asker import ScriptedAsker, recorded
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.grants import grant_of
from tests.fakes.keeping import Keep
from tests.fakes.machine import FileMachine

YES = TriStateAnswer(verdict=TriState.YES)
NO = TriStateAnswer(verdict=TriState.NO)
NOTHING = Capability(hostname="desk", os="Linux", arch="any", cpu_cores=2, cpu_threads=2)


def card(uuid: str, usable: TriStateAnswer = YES) -> Device:
    return Device(
        uuid=uuid, backend=Backend.CUDA, name="card", total_bytes=24 << 30, free_bytes=24 << 30,
        installed=YES, visible=YES, usable=usable,
    )  # fmt: skip


def having(*devices: Device | str) -> Capability:
    cards = tuple(card(one) if isinstance(one, str) else one for one in devices)
    return changed(NOTHING, devices=cards)


class Looks:
    """A machine that is looked at by hand."""

    def __init__(self, *found: Capability | Exception) -> None:
        self.found = list(found)
        self.offer = MachineOffer(having("a", "b"))
        self.changes: list[DeviceChange] = []
        self.redetecting = DeviceRedetection(self.offer, self.detect, self.changes.append)

    def detect(self) -> Capability:
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def offered(self) -> list[str]:
        return [device.uuid for device in self.offer.capability.usable_devices]


def test_a_device_is_withdrawn_when_two_looks_in_a_row_miss_it():
    looks = Looks(having("b"), having("b"))
    assert looks.redetecting.act() == CONFIRM_S
    assert (looks.offered(), looks.changes) == (["a", "b"], [])
    assert looks.redetecting.act() == EVERY_S
    assert (looks.offered(), looks.changes) == (["b"], [DeviceChange(gone=("a",))])
    assert looks.offer.capability.hostname == "desk"


def test_a_device_that_one_look_misses_stays_offered():
    looks = Looks(having("b"), having("a", "b"), having("a"), having("a", "b"))
    for _ in range(4):
        looks.redetecting.act()
    assert (looks.offered(), looks.changes) == (["a", "b"], [])


def test_a_device_that_comes_back_is_offered_again_at_once():
    looks = Looks(having("b"), having("b"), having("a", "b"))
    for _ in range(3):
        looks.redetecting.act()
    assert looks.offered() == ["a", "b"]
    assert looks.changes == [DeviceChange(gone=("a",)), DeviceChange(back=("a",))]


def test_a_device_that_is_listed_but_not_usable_is_gone():
    change = compare_devices(having("a", "b"), having(card("a", usable=NO), "b"), frozenset({"a"}))
    assert change.gone == ("a",)


def test_a_look_that_fails_changes_nothing():
    looks = Looks(NetworkFailed("no"))
    assert looks.redetecting._try() == EVERY_S
    assert looks.offered() == ["a", "b"]


def test_what_the_probes_say_of_a_lost_card_withdraws_it(tmp_path: Path):
    machine = FileMachine(tmp_path)
    machine.file("/dev/nvidia0")
    machine.file("/dev/nvidia1")
    machine.program("nvidia-smi", "")

    def found(recording: str) -> Capability:
        asker = ScriptedAsker({"nvidia-smi": recorded(f"nvidia-smi/{recording}")})
        seen = find_devices(machine.environment, ask=asker, files=str(machine.root), probes=frozenset({"nvidia-smi"}))
        return changed(NOTHING, devices=seen.devices)

    both, lost = found("r535-two-rtx4090.csv"), found("one-lost.csv")
    first, second = (device.uuid for device in both.usable_devices)
    assert compare_devices(both, lost, frozenset()).missed == {second}
    assert compare_devices(both, lost, frozenset({second})).gone == (second,)
    assert compare_devices(lost, both, frozenset()).back == (second,)
    unreachable = found("driver-unreachable.txt")
    assert compare_devices(both, unreachable, frozenset({first, second})).gone == tuple(sorted((first, second)))


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    made = Keep(tmp_path, FakeCoordinator())
    made.look_as(offer=MachineOffer(having("a", "b")))
    return made


def test_the_worker_says_hello_again_with_what_it_offers_now(keep: Keep):
    now = having("b")
    keep.detect = lambda: now

    def offered() -> list[str]:
        return [device["uuid"] for device in keep.fleet.hellos[-1].capability["devices"]]

    with keep:
        keep.until_told("joined")
        assert offered() == ["a", "b"]
        redetecting = keep.daemon._redetecting
        assert redetecting is not None
        for _ in range(2):
            redetecting.act()
        keep.fleet.until(lambda: offered() == ["b"])
        assert keep.until_told("devices_gone") == {"devices": ["a"]}
        assert len({hello.incarnation for hello in keep.fleet.hellos}) == 1
        now = having("a", "b")
        redetecting.act()
        keep.fleet.until(lambda: offered() == ["a", "b"])
        assert keep.until_told("devices_back") == {"devices": ["a"]}


def test_a_grant_on_a_device_that_is_gone_is_declined_with_the_reason(keep: Keep):
    grant = grant_of(
        job="a" * 64, attempt=1, epoch=1, generation=1, name="a", recipe="command", lease_s=9.0, start_s=9.0,
        devices=("a",), folder=str(keep.folder),
    )  # fmt: skip
    keep.machine.offer.capability = having("b")
    look: Precheck = keep.machine.look(grant)
    assert look.device_trouble == "this machine has no a now"


@pytest.mark.parametrize("devices", [("gone",), ()], ids=["on a device", "on none"])
def test_an_attempt_on_a_device_that_does_not_begin_has_the_devices_looked_at(keep: Keep, devices: tuple[str, ...]):
    looked: list[int] = []

    def detect() -> Capability:
        looked.append(1)
        return having("a", "b")

    keep.detect = detect
    with keep:
        keep.until_told("joined")
        keep.fleet.submit("gpu", args={"argv": ["false"]}, folder=str(keep.folder), devices=devices)
        told = keep.until_told("declined" if devices else "ended")
        if devices:
            assert told["why"] == "this machine has no gone now"
            keep.fleet.until(lambda: looked)
    assert bool(looked) is bool(devices)
