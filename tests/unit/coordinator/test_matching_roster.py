"""A machine's state in a word: silence first, then what people decided, then what it does."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.http.overview import GONE_S, machine_view
from stoker.coordinator.queue.commands import MachineInspection
from stoker.coordinator.queue.reader import LeaseView, MachineRow
from stoker.core.device import GIB
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from tests.unit.coordinator.fleets import box, card

NOW_S = 1_000_000.0


def view(**said: Any) -> Any:
    columns: dict[str, Any] = {
        "name": "desk",
        "last_seen_s": NOW_S,
        "first_seen_s": 0.0,
        "capability": {},
        "declared": {},
    }
    columns |= dict.fromkeys(("incarnation", "boot_id", "version", "capability_digest", "closed", "why"), "")
    columns |= {"slots": None, "left_s": None, "until_s": None, "closed_devices": {}}
    offer = said.pop("offer", None)
    return machine_view(MachineRow(**(columns | said)), MachineInspection(), offer, now_s=NOW_S, silent_s=120.0)


def lease(job: str, *devices: str) -> LeaseView:
    return LeaseView(
        seq=1, job="", name=job, recipe="", class_id=1, state="running", attempt=1, epoch=1, incarnation="",
        until_s=0.0, started_s=None, devices=devices,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({}, "ready"),
        ({"held": (lease("gbt"),)}, "busy"),
        ({"held": (lease("gbt"),), "slots": 2}, "ready"),
        ({"closed": "drained", "held": (lease("gbt"),)}, "drained"),
        ({"closed": "cordoned"}, "cordoned"),
        ({"closed": "paused"}, "paused"),
        ({"last_seen_s": NOW_S - 120.0}, "ready"),
        ({"last_seen_s": NOW_S - 121.0, "closed": "drained"}, "silent"),
        ({"last_seen_s": NOW_S - GONE_S - 1}, "gone"),
        ({"last_seen_s": NOW_S + 50.0}, "ready"),
        ({"left_s": NOW_S - 5.0}, "left"),
        ({"left_s": NOW_S - GONE_S - 5.0, "last_seen_s": NOW_S - GONE_S - 5.0}, "left"),
        ({"offer": NodeOffer(node="desk", slots=1, closed="paused by ann")}, "paused"),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(one) or "nothing",
)
def test_the_state(said: dict[str, Any], state: str):
    assert view(**said).state == state


def test_why_and_until_when_are_told_of_what_is_closed_and_heard_of():
    closed = {"closed": "paused", "why": "a game", "until_s": NOW_S + 60}
    assert (view(**closed).why, view(**closed).until_s) == ("a game", NOW_S + 60)
    silent = view(**closed, last_seen_s=NOW_S - 500)
    assert (silent.state, silent.why, silent.until_s) == ("silent", "", None)


def test_a_machine_that_closed_itself_says_why():
    assert view(offer=NodeOffer(node="desk", slots=1, closed="paused by ann")).why == "paused by ann"


def test_slots_are_those_that_matching_counts():
    assert view(capability=box("desk", card("GPU-1"), card("GPU-2")).to_dict()).slots == 2
    assert view(slots=5, offer=NodeOffer(node="desk", slots=3)).slots == 3


def test_devices_say_who_is_on_them_what_is_promised_and_why_nothing_more_is():
    offer = NodeOffer(
        node="desk",
        devices=(
            DeviceOffer(
                uuid="GPU-1", type="rtx-4090", total_bytes=24 * GIB, free_bytes=20 * GIB, promised_bytes=6 * GIB
            ),
            DeviceOffer(uuid="GPU-2", type="rtx-4090", total_bytes=24 * GIB, closed="not usable"),
        ),
    )
    found = view(
        capability=box("desk", card("GPU-1"), card("GPU-2"), card("GPU-3")).to_dict(),
        held=(lease("resnet/1", "GPU-1"), lease("prep")),
        closed_devices={"GPU-3": "cordoned"},
        offer=offer,
    )
    first, second, third = found.devices
    assert (first["jobs"], first["free_bytes"], first["promised_bytes"]) == (["resnet/1"], 20 * GIB, 6 * GIB)
    assert [one["closed"] for one in (first, second, third)] == ["", "not usable", "cordoned"]
    assert found.jobs == ("resnet/1", "prep")


def test_a_capability_that_is_not_what_it_should_be_is_still_shown():
    assert view(capability={"devices": ["what", {"name": "no uuid"}]}).devices == (
        {"name": "no uuid", "jobs": [], "closed": ""},
    )
