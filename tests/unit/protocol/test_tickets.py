"""A ticket: written and read back, and refused with everything that is wrong with it, but never with its key."""

from __future__ import annotations

import json

import pytest

from stoker.core.errors import TicketRefused
from stoker.protocol.enrolment_messages import LARGEST_TICKET_BYTES, Ticket, read_ticket, ticket_to_text

KEY = "0f" * 32
TICKET = Ticket(id="7F3A2C", key=KEY, url="https://desk.local:7717", name="a100-7f3a2c")


def body(**fields: object) -> bytes:
    return json.dumps({**json.loads(ticket_to_text(TICKET)), **fields}).encode()


def faults_of(error: TicketRefused) -> list[str]:
    faults = error.data["faults"]
    assert isinstance(faults, list)
    return faults


def test_a_ticket_is_one_json_object_with_a_version():
    assert json.loads(ticket_to_text(TICKET)) == {
        "v": 1,
        "id": "7F3A2C",
        "key": KEY,
        "url": "https://desk.local:7717",
        "name": "a100-7f3a2c",
    }
    assert read_ticket(ticket_to_text(TICKET).encode()) == TICKET


def test_a_coordinator_without_tls_is_reached_by_its_socket_on_this_machine():
    here = Ticket(
        id="7F3A2C", key=KEY, url="http://127.0.0.1:7717", name="small-7f3a2c", socket="/tmp/stoker-0/7717.sock"
    )
    assert read_ticket(ticket_to_text(here).encode()) == here


def test_a_slash_behind_the_address_is_left_out():
    assert read_ticket(body(url="https://desk.local:7717/")) == TICKET


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"v": 2}, "version 2 is newer"),
        ({"v": True}, "v is not 1"),
        ({"v": "1"}, "v is not 1"),
        ({"id": "7f3a2c"}, "id is not"),
        ({"id": "7"}, "id is not"),
        ({"id": "7F3A2C\n"}, "id is not"),
        ({"id": ["7F3A2C"]}, "id is not"),
        ({"key": KEY[:-1]}, "key is not"),
        ({"key": KEY.upper()}, "key is not"),
        ({"key": KEY + "\n"}, "key is not"),
        ({"url": "http://desk.local:7717"}, "url is not"),
        ({"url": "http://127.0.0.1:7717"}, "url is not"),
        ({"url": "http://desk.local:7717", "socket": "/run/7717.sock"}, "url is not"),
        ({"socket": "/run/7717.sock"}, "url is not"),
        ({"url": "http://127.0.0.1:7717", "socket": "7717.sock"}, "socket is not an absolute path"),
        ({"url": "https://me:secret@desk.local"}, "url is not"),
        ({"url": "https://desk.local/elsewhere"}, "url is not"),
        ({"url": None}, "url is not"),
        ({"name": "../up"}, "name is not"),
        ({"name": ""}, "name is not"),
        ({"more": 1}, "unknown fields: more"),
    ],
    ids=str,
)
def test_each_field_is_checked(fields, fault):
    with pytest.raises(TicketRefused, match=fault) as caught:
        read_ticket(body(**fields))
    assert len(faults_of(caught.value)) == 1
    assert caught.value.exit_code == 64


def test_all_faults_are_reported_together_without_any_key():
    with pytest.raises(TicketRefused) as caught:
        read_ticket(json.dumps({"key": KEY + "0", "more": 1}).encode())
    assert [fault.split()[0] for fault in faults_of(caught.value)] == ["v", "id", "key", "url", "name", "unknown"]
    assert KEY not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 3000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (LARGEST_TICKET_BYTES + 1), "larger than 4,096 bytes"),
    ],
    ids=["empty", "binary", "deep", "list", "large"],
)
def test_other_content_is_refused(data, fault):
    with pytest.raises(TicketRefused, match=fault):
        read_ticket(data)


def test_a_ticket_is_shown_without_its_key():
    assert KEY not in repr(TICKET)
