"""What is read was written by anybody on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.frozen import changed
from stoker.devices.ledger.ledger_folder import name_of, pack, read_name, unpack
from stoker.devices.ledger.reservations import QueueTicket, Reservation
from tests.unit.devices.ledger.lab import entry, gib, someone

ENTRY = entry(gib(6), measured_bytes=gib(5), base="llama", base_bytes=gib(2), is_exclusive=True)
TICKET = QueueTicket(
    id="0" * 16,
    number=3,
    job="job",
    owner=someone(9),
    uuids=("GPU-a", "GPU-b"),
    count=2,
    vram_bytes=gib(6),
    may_share=True,
    since_s=1.0,
    seen_until_s=31.0,
)


def test_what_is_written_is_read_back_the_same() -> None:
    assert Reservation.from_dict(unpack(pack(ENTRY.to_dict())), user=0) == ENTRY
    assert QueueTicket.from_dict(unpack(pack(TICKET.to_dict())), user=0) == TICKET


def test_whose_it_is_comes_from_the_file_system_and_not_from_the_record() -> None:
    assert Reservation.from_dict(ENTRY.to_dict(), user=1000).user == 1000
    with pytest.raises(ValueError, match="user"):
        Reservation.from_dict({**ENTRY.to_dict(), "user": 0})


@pytest.mark.parametrize("place", [0, 5, 17, 24, 40, 100, -1])
def test_a_flipped_bit_is_noticed(place: int) -> None:
    data = bytearray(pack(ENTRY.to_dict()))
    data[place] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 16, 24, 25, 100])
def test_a_truncated_record_is_noticed(length: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpack(pack(ENTRY.to_dict())[:length])


WRONG: dict[str, Any] = {
    "id": "../../../etc/pass",
    "job": "x" * 2000,
    "base_bytes": -1,
    "since_s": float("nan"),
    "lease_s": "90",
    "lease_until_s": 1e300,
    "owner": {"pid": 0, "start_ticks": 1},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_an_entry_that_can_not_be_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="not"):
        Reservation.from_dict({**ENTRY.to_dict(), field: WRONG[field]})


@pytest.mark.parametrize("field", sorted(ENTRY.to_dict()))
def test_a_missing_field_is_refused(field: str) -> None:
    body = ENTRY.to_dict()
    del body[field]
    with pytest.raises(ValueError, match=field):
        Reservation.from_dict(body)


@pytest.mark.parametrize(
    "share",
    [
        None,
        {},
        {"uuid": ""},
        {"uuid": "x" * 300},
        {"promised_bytes": 1.5},
        {"promised_bytes": True},
        {"promised_bytes": 2**70},
        {"memory_type": "other"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_share_that_can_not_be_is_refused(share: object) -> None:
    body: dict[str, Any] = ENTRY.to_dict()
    good = body["shares"][0]
    body["shares"] = [{**good, **share} if isinstance(share, dict) and share else share]
    with pytest.raises(ValueError, match=r"not|256"):
        Reservation.from_dict(body)


def test_a_device_that_is_held_twice_by_one_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="once"):
        Reservation.from_dict(changed(ENTRY, shares=ENTRY.shares * 2).to_dict())


@pytest.mark.parametrize("body", [None, [], "text", 3, {"v": 1}], ids=str)
def test_what_is_no_record_at_all_is_refused(body: object) -> None:
    for kind in (Reservation, QueueTicket):
        with pytest.raises(ValueError, match="not a"):
            kind.from_dict(body)


def test_names_say_whose_a_record_is() -> None:
    for record in (ENTRY, TICKET):
        name = name_of(record)
        assert read_name(str(name)) == name
        assert (name.pid, name.id) == (record.owner.pid, record.id)
    assert name_of(TICKET).number == TICKET.number
    for text in (
        "",
        "lock",
        "1-2-3",
        "0-1-0123456789abcdef",
        "-1-1-0123456789abcdef",
        f"{name_of(ENTRY)}x",
        f"../{name_of(ENTRY)}",
        f".{name_of(ENTRY)}",
    ):
        assert read_name(text) is None
