"""Hooks against somebody who really listens: signed, in order, at least once, and never where they may not go."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import cast

import pytest

from stoker.coordinator import notify as notifying
from stoker.coordinator.notify import Notifier, is_allowed_address, is_wanted, trial
from stoker.coordinator.queue.commands import AddHook
from stoker.coordinator.queue.reader import WebhookRow
from stoker.core.errors import DatabaseTrouble
from stoker.host.http.exchange import HttpSettings
from tests.contract.queue_driving import Driven, order
from tests.servers.receiver import Message, Told, receiver

SECRET = "what only two know"


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Driven]:
    shutil.copyfile(sqlite_template, tmp_path / "queue.db")
    driven = Driven(f"sqlite:///{tmp_path / 'queue.db'}")
    yield driven
    driven.close()


@pytest.fixture
def notifier(fleet: Driven) -> Iterator[Notifier]:
    with Notifier(fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=3600.0) as found:
        yield found


def hook(fleet: Driven, told: Told, *on: str, jobs: tuple[str, ...] = (), is_inner: bool = True) -> None:
    fleet.ask(AddHook(url=told.url, secret=SECRET, kinds=on, jobs=jobs, is_inner=is_inner, by="me"))


def deliver(notifier: Notifier) -> None:
    while notifier.deliver_all():
        pass


def events(messages: list[Message]) -> list[str]:
    return [json.loads(message.body)["event"] for message in messages]


def only(fleet: Driven) -> WebhookRow:
    (found,) = fleet.reader.hooks()
    return found


def end_two(fleet: Driven) -> tuple[str, ...]:
    submitted = fleet.submit(order("good"), order("bad"))
    fleet.join("m1")
    first, second = fleet.claim(most=2)
    fleet.finish(first)
    fleet.fail(second)
    return tuple(job.id for job in submitted.jobs)


def test_messages_are_signed_and_carry_the_events_number(fleet: Driven, notifier: Notifier):
    with receiver() as told:
        hook(fleet, told)
        end_two(fleet)
        deliver(notifier)
    assert events(told.messages) == ["completed", "failed"]
    message = told.messages[0]
    at, proof = message.headers["X-Stoker-Signature"].removeprefix("t=").split(",sha256=")
    expected = hmac.new(SECRET.encode(), at.encode() + b"." + message.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(proof, expected)
    body = json.loads(message.body)
    assert message.headers["X-Stoker-Event-Id"] == body["id"] == f"1-{body['seq']}"
    assert (body["name"], body["machine"]) == ("good", "m1")


def test_a_failed_message_comes_again_after_a_pause_and_none_is_lost(fleet: Driven, notifier: Notifier):
    with receiver("500", "200") as told:
        hook(fleet, told)
        end_two(fleet)
        deliver(notifier)
        assert (only(fleet).failures, only(fleet).last_error) == (1, "status 500")
        deliver(notifier)
        assert len(told.messages) == 1, "it was tried before its pause was over"
        fleet.clock.advance(notifying.FIRST_PAUSE_S + 1.0)
        deliver(notifier)
    assert events(told.messages) == ["completed", "completed", "failed"]
    assert told.messages[0].headers["X-Stoker-Event-Id"] == told.messages[1].headers["X-Stoker-Event-Id"]
    assert (only(fleet).failures, only(fleet).failing_since_s) == (0, None)


def test_how_far_a_hook_has_come_outlives_the_coordinator(fleet: Driven):
    with receiver() as told:
        hook(fleet, told)
        end_two(fleet)
        for _ in range(2):
            with Notifier(fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=3600.0) as one:
                deliver(one)
            fleet.close()
            fleet.open()
    assert len(told.messages) == 2


def test_one_that_fails_for_a_day_is_closed_with_an_event(fleet: Driven, notifier: Notifier):
    with receiver("503") as told:
        hook(fleet, told)
        end_two(fleet)
        deliver(notifier)
        fleet.clock.advance(notifying.GIVE_UP_S)
        deliver(notifier)
        deliver(notifier)
    assert only(fleet).closed_s is not None
    (closed,) = [event for event in fleet.reader.events() if event["kind"] == "hook_closed"]
    assert "no delivery for 24 h: status 503" in closed["why"]
    assert len(told.messages) == 2


def test_a_message_that_we_cannot_write_fails_as_any_other_and_stops_no_hook(
    fleet: Driven, caplog: pytest.LogCaptureFixture
):
    def picture(_job: str) -> bytes:
        raise OverflowError("no axis is that long")

    with (
        receiver() as broken,
        receiver() as told,
        Notifier(
            fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=3600.0, picture=picture
        ) as notifier,
    ):
        fleet.ask(AddHook(url=broken.url, secret=SECRET, kinds=(), jobs=(), is_inner=True, by="me", format="ntfy"))
        hook(fleet, told)
        end_two(fleet)
        deliver(notifier)
        assert events(told.messages) == ["completed", "failed"]
        failing, working = fleet.reader.hooks()
        assert (failing.failures, working.failures) == (1, 0)
        assert failing.last_error == "internal error in the coordinator: OverflowError"
        fleet.clock.advance(notifying.GIVE_UP_S)
        deliver(notifier)
    assert fleet.reader.hooks()[0].closed_s is not None
    assert "no axis is that long" in caplog.text


def test_pauses_grow_and_have_a_bound(fleet: Driven, notifier: Notifier):
    with receiver("500") as told:
        hook(fleet, told)
        end_two(fleet)
        pauses = []
        for _ in range(12):
            deliver(notifier)
            pauses.append(only(fleet).not_before_s - fleet.clock.wall_s())
            fleet.clock.advance(pauses[-1] + 1.0)
    assert pauses[:3] == pytest.approx([5.0, 10.0, 20.0])
    assert max(pauses) == pytest.approx(notifying.LONGEST_PAUSE_S)


def test_somebody_who_hangs_is_given_up_and_keeps_nobody_else(fleet: Driven, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifying, "ANSWER_S", 0.3)
    with (
        receiver("hang") as stuck,
        receiver() as told,
        Notifier(fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=3600.0) as one,
    ):
        hook(fleet, stuck)
        hook(fleet, told)
        end_two(fleet)
        deliver(one)
        assert events(told.messages) == ["completed", "failed"]
        assert len(stuck.messages) == 1
    assert [row.failures for row in fleet.reader.hooks()] == [1, 0]


def test_nobody_is_sent_elsewhere(fleet: Driven, notifier: Notifier):
    with receiver() as other, receiver("302") as told:
        told.elsewhere = other.url
        hook(fleet, told)
        end_two(fleet)
        deliver(notifier)
    assert other.messages == []
    assert only(fleet).last_error == "status 302"


@pytest.mark.parametrize(
    ("begin", "endless", "trouble"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65536, ""),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"y" * 8000 + b"\r\n", "answer"),
    ],
)
def test_an_endless_answer_is_not_read(notifier: Notifier, begin: bytes, endless: bytes, trouble: str):
    sent = 0
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        nonlocal sent
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(begin)
            while True:
                connection.sendall(endless)
                sent += len(endless)

    thread = threading.Thread(target=answer)
    thread.start()
    row = SimpleNamespace(
        url=f"http://127.0.0.1:{listener.getsockname()[1]}/", is_inner=True, format="stoker", secret=""
    )
    found = notifier.send(cast("WebhookRow", row), trial(1, 0.0))
    thread.join(30.0)
    listener.close()
    assert not thread.is_alive()
    assert (found == "") is (trouble == "")
    assert sent < 64 << 20


def test_a_hook_that_no_admin_made_never_reaches_this_computer(fleet: Driven, notifier: Notifier):
    with receiver() as told:
        hook(fleet, told, is_inner=False)
        end_two(fleet)
        deliver(notifier)
    assert told.messages == []
    assert "are not allowed" in only(fleet).last_error


def test_a_hook_of_jobs_hears_of_those_alone_and_ends_with_them(fleet: Driven, notifier: Notifier):
    fleet.submit(order("other"))
    fleet.join("m1")
    with receiver() as told:
        (mine,) = fleet.submit(order("mine")).jobs
        hook(fleet, told, jobs=(mine.id,))
        for grant in fleet.claim(most=2):
            assert only(fleet).closed_s is None
            fleet.finish(grant)
            deliver(notifier)
    assert [json.loads(message.body)["name"] for message in told.messages] == ["mine"]
    assert only(fleet).last_error == "all its jobs have ended"


def test_a_hook_made_after_its_jobs_have_ended_still_hears_of_it(fleet: Driven, notifier: Notifier):
    with receiver() as told:
        hook(fleet, told, jobs=end_two(fleet))
        deliver(notifier)
    assert events(told.messages) == ["completed", "failed"]
    assert only(fleet).closed_s is not None


def test_news_is_delivered_by_itself(fleet: Driven):
    with (
        receiver() as told,
        Notifier(fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=0.01) as one,
    ):
        fleet.queue.on_change(one.changed)
        hook(fleet, told, "submitted")
        fleet.submit(order("one"))
        assert events(told.wait_for(1)) == ["submitted"]


def test_a_database_in_trouble_is_asked_again_in_a_while_and_not_at_once(fleet: Driven):
    asked: SimpleQueue[None] = SimpleQueue()

    class Troubled(Notifier):
        def deliver_all(self) -> bool:
            asked.put(None)
            raise DatabaseTrouble("no room")

    with Troubled(fleet.queue, HttpSettings(), clock=fleet.clock, chance=lambda: 1.0, round_s=60.0):
        asked.get(timeout=30)
        with pytest.raises(Empty):
            asked.get(timeout=0.1)


@pytest.mark.parametrize(
    ("kind", "to", "on", "is_told"),
    [
        ("job_finished", "completed", (), True),
        ("job_started", "running", (), False),
        ("job_started", "running", ("started",), True),
        ("symptom", "", (), True),
        ("machine_lost", "", ("machine",), True),
        ("hook_closed", "", ("machine", "symptom", "trust"), False),
    ],
    ids=["usual_end", "unusual", "asked_for", "symptom", "machine", "about_hooks"],
)
def test_a_hook_hears_what_it_asked_for(kind: str, to: str, on: tuple[str, ...], is_told: bool):
    assert is_wanted({"kind": kind, "to": to}, on) is is_told


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
        "::ffff:169.254.169.254",
        "2002:a9fe:a9fe::1",
        "64:ff9b::a9fe:a9fe",
        "not an address",
    ],
)
def test_metadata_and_link_local_addresses_are_never_told(address: str):
    assert not is_allowed_address(address, is_inner=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "fd12::1", "::ffff:10.0.0.1"])
def test_inner_addresses_are_told_by_an_admins_hook_alone(address: str):
    assert (is_allowed_address(address, is_inner=True), is_allowed_address(address, is_inner=False)) == (True, False)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_told(address: str):
    assert is_allowed_address(address, is_inner=False)
