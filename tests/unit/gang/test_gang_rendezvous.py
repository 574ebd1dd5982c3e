"""Rendezvous over TCP, with both sides in this process."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from stoker.core.errors import BadGang, Cancelled, RendezvousFailed
from stoker.gang import rendezvous as lines
from stoker.gang.rendezvous import RendezvousConnection
from stoker.gang.rendezvous_client import RendezvousClient
from stoker.gang.rendezvous_host import RendezvousHost
from stoker.gang.rendezvous_types import (
    UP,
    HostFailure,
    HostPart,
    Rendezvous,
    RendezvousOutcome,
    failed,
    has_passed,
    not_arrived,
    settled,
)
from tests.unit.host.real_processes import wait_until

TOKEN = "sixteen letters and more"
HOME = "127.0.0.1"


def barrier(rendezvous: Rendezvous, point: str, timeout_s: float) -> None:
    """Arrive, and wait for all hosts. Raises `RendezvousFailed` with those that did not arrive, or with the cause."""
    if not has_passed(rendezvous, point, timeout_s):
        raise failed(
            rendezvous.verdict() or settled(rendezvous, not_arrived(rendezvous.missing(point), timeout_s, point))
        )


class CuttingProxy:
    """Relays lines to a rendezvous, and resets the first connection when a given line has come, with or without it."""

    def __init__(self, port: int, kind: str, *, is_delivered: bool) -> None:
        self.port_of_holder = port
        self.kind = kind
        self.is_delivered = is_delivered
        self.has_cut = False
        self.sockets = [socket.create_server((HOME, 0))]
        self.port = int(self.sockets[0].getsockname()[1])
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    def start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        self.threads.append(threading.Thread(target=work, args=arguments))
        self.threads[-1].start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.sockets[0].accept()
                holder = socket.create_connection((HOME, self.port_of_holder))
                self.sockets += [client, holder]
                self.start(self.relay, client, holder)
                self.start(self.relay, holder, client)

    def relay(self, source: socket.socket, target: socket.socket) -> None:
        received = RendezvousConnection(source)
        with suppress(OSError):
            while (line := received.receive()) is not None:
                is_cut = not self.has_cut and lines.read(line)["kind"] == self.kind
                if not is_cut or self.is_delivered:
                    target.sendall(line + b"\n")
                if is_cut:
                    self.has_cut = True
                    # What was sent is to be acknowledged before the reset.
                    wait_until(lambda: unsent_bytes(target) == 0)
                    reset(source)
                    reset(target)
                    return
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join(5)


def unsent_bytes(connection: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), "little")


def reset(connection: socket.socket) -> None:
    """Abort a connection: both sides of it get an error instead of an end."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread that receives keeps the descriptor in use; this wakes it.
        connection.shutdown(socket.SHUT_RD)
    connection.close()


class Hosts:
    """A holder, and clients that come when asked; each does its part in a thread, and its error is kept."""

    def __init__(self, *names: str, epoch: int = 7) -> None:
        self.names = names
        self.epoch = epoch
        self.stack = ExitStack()
        self.turned_away: list[str] = []
        self.holder = self.keep(RendezvousHost(names, at=(HOME, 0), token=TOKEN, epoch=epoch))

    def keep(self, rendezvous: Any) -> Any:
        self.stack.callback(rendezvous.close)
        return rendezvous

    def client(self, name: str, *, epoch: int | None = None, token: str = TOKEN) -> RendezvousClient:
        wanted = self.epoch if epoch is None else epoch
        return self.keep(RendezvousClient(name, at=(HOME, self.holder.port), token=token, epoch=wanted))

    def gather(self, *meetings: Any, timeout_s: float = 5.0) -> list[Any]:
        """Have all of these gather at once; give what came of each: host_ranks, or an error."""
        return at_once(*(lambda one=one: one.gather(part(), timeout_s) for one in meetings))


def part(ranks: int = 2) -> HostPart:
    return HostPart(ranks=ranks, devices=tuple(f"device {number}" for number in range(ranks)))


def verdict_of(rendezvous: Any) -> RendezvousOutcome:
    """Wait for the end of a rendezvous, as one of its members learns it."""
    wait_until(lambda: rendezvous.verdict() is not None)
    verdict: RendezvousOutcome = rendezvous.verdict()
    return verdict


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    came: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            came[index] = calls[index]()
        except (RendezvousFailed, Cancelled) as error:
            came[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return came


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts("lab1", "lab2")
    with made.stack:
        yield made


def test_hosts_are_seated_in_the_order_they_were_named_in_whoever_comes_first():
    made = Hosts("lab1", "lab2", "lab3")
    with made.stack:
        came = made.gather(made.client("lab3"), made.client("lab2"), made.holder)
    assert [one.first_rank for one in came] == [4, 2, 0]
    assert {one.nranks for one in came} == {6}
    assert [host.name for host in came[0].hosts] == ["lab1", "lab2", "lab3"]
    assert {one.address for one in came} == {HOME}


def test_what_the_first_host_publishes_every_guest_learns(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    news = threading.Event()
    client.on_news(news.set)
    hosts.holder.publish("10.0.0.1:4000")
    wait_until(lambda: client.published() == "10.0.0.1:4000")
    # Told once it is known, by the thread that has heard it.
    assert news.wait(20)


def test_nobody_passes_before_everybody_has_arrived(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    client.arrive(UP)
    wait_until(lambda: hosts.holder.missing(UP) == ("lab1",))
    assert not hosts.holder.has_passed(UP)
    assert not client.has_passed(UP)
    at_once(lambda: barrier(hosts.holder, UP, 5.0), lambda: barrier(client, UP, 5.0))
    assert hosts.holder.has_passed(UP)
    assert client.has_passed(UP)


def test_a_host_that_does_not_come_is_named_to_all():
    made = Hosts("lab1", "lab2", "lab3")
    with made.stack:
        came = made.gather(made.client("lab2"), made.holder, timeout_s=0.3)
    for error in came:
        assert isinstance(error, RendezvousFailed)
        assert error.data["missing"] == ["lab3"]
        assert str(error) == "lab3 did not arrive in 0.3 s"


def test_a_host_that_stays_behind_at_a_barrier_is_named_to_all(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    with pytest.raises(RendezvousFailed, match=r"lab2 did not arrive at 'up' in 0\.1 s"):
        barrier(hosts.holder, UP, 0.1)
    assert verdict_of(client).cause.missing == ("lab2",)


def test_a_meeting_that_nobody_holds_is_told_as_such():
    # Nobody listens, and nobody else is given the port meanwhile.
    with socket.socket() as taken:
        taken.bind((HOME, 0))
        port = taken.getsockname()[1]
        client = RendezvousClient("lab2", at=(HOME, port), token=TOKEN, epoch=1)
        with pytest.raises(RendezvousFailed, match=f"{HOME}:{port} did not arrive in 0.2 s: Connection refused"):
            client.gather(part(), 0.2)


def test_one_host_that_fails_fails_the_meeting_for_all_with_its_own_words():
    made = Hosts("lab1", "lab2", "lab3")
    with made.stack:
        second, third = made.client("lab2"), made.client("lab3")
        made.gather(second, third, made.holder)
        facts = {"rank": 4, "device": "device 0", "phase": "COMM", "how": "raised", "type": "ValueError", "text": "no"}
        third.fail(
            HostFailure(host="", message="rank 4 failed", facts={**facts, "after_s": 0.1, "traceback": "Trace\n"})
        )
        second.fail(HostFailure(host="", message="connection closed by peer", is_echo=True))
        for one in (made.holder, second, third):
            verdict = verdict_of(one)
            assert (verdict.cause.host, verdict.cause.message) == ("lab3", "rank 4 failed")
            assert (verdict.cause.facts["rank"], verdict.cause.facts["traceback"]) == (4, "Trace\n")
            assert [dragged.host for dragged in verdict.collateral] == ["lab2"]


def test_a_host_that_vanishes_fails_the_meeting_for_all(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    client._talk.close()
    assert verdict_of(hosts.holder).cause.message.startswith("lab2 vanished")


def test_a_holder_that_vanishes_is_named_by_its_guests(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    hosts.holder._clients["lab2"].talk.close()
    assert verdict_of(client).cause.missing == ("lab1",)


@pytest.mark.parametrize(
    ("kind", "is_delivered"),
    [
        ("challenge", False),
        ("challenge", True),
        ("hello", False),
        ("hello", True),
        ("welcome", False),
        ("attending", False),
    ],
)
def test_a_guest_whose_connection_breaks_before_it_has_arrived_comes_again(hosts, kind, is_delivered):
    # With "attending" cut off, the welcome was delivered.
    proxy = hosts.keep(CuttingProxy(hosts.holder.port, kind, is_delivered=is_delivered))
    client = hosts.keep(RendezvousClient("lab2", at=(HOME, proxy.port), token=TOKEN, epoch=hosts.epoch))
    came = hosts.gather(client, hosts.holder)
    assert proxy.has_cut
    assert [one.place for one in came] == [1, 0]
    at_once(lambda: barrier(hosts.holder, UP, 5.0), lambda: barrier(client, UP, 5.0))
    assert client.has_passed(UP)
    assert hosts.holder.verdict() is None


def test_a_guest_whose_connection_breaks_once_it_has_arrived_is_the_cause_for_all():
    made = Hosts("lab1", "lab2", "lab3")
    with made.stack:
        proxy = made.keep(CuttingProxy(made.holder.port, "attending", is_delivered=True))
        client = made.keep(RendezvousClient("lab2", at=(HOME, proxy.port), token=TOKEN, epoch=made.epoch))
        came = made.gather(client, made.holder)
        assert all(isinstance(error, RendezvousFailed) for error in came)
        assert came[1].data["missing"] == ["lab2"]
        assert str(came[0]).startswith("lab1 vanished (the connection broke")


def test_a_guest_that_connects_again_before_its_first_connection_is_missed_takes_its_place(hosts):
    with socket.create_connection((HOME, hosts.holder.port)) as stuck:
        nonce = lines.nonce_of(lines.read(stuck.recv(4096)))
        proven = {"epoch": hosts.epoch, "nonces": (nonce, "0" * 64), "name": "lab2"}
        proof = lines.proof(TOKEN, "guest", **proven)
        stuck.sendall(lines.write("hello", name="lab2", epoch=hosts.epoch, nonce="0" * 64, proof=proof))
        assert lines.read(stuck.recv(4096))["kind"] == "welcome"
        came = hosts.gather(hosts.client("lab2"), hosts.holder)
        assert [one.place for one in came] == [1, 0]
        stuck.settimeout(5)
        assert stuck.recv(4096) == b""


def test_a_holder_that_is_gone_before_all_are_seated_is_missed_at_once():
    made = Hosts("lab1", "lab2", "lab3")
    with made.stack:
        client = made.client("lab2")

        def crash() -> None:
            wait_until(lambda: made.holder._clients and made.holder._clients["lab2"].part is not None)
            made.holder._listener.shutdown(socket.SHUT_RDWR)
            made.holder._listener.close()
            reset(made.holder._clients["lab2"].talk._socket)

        came = at_once(lambda: client.gather(part(), 60.0), crash)
        assert str(came[0]) == "lab1 vanished (Connection refused)"


def test_leaving_once_all_were_up_is_no_failure(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    at_once(lambda: barrier(hosts.holder, UP, 5.0), lambda: barrier(client, UP, 5.0))
    client.close()
    wait_until(lambda: hosts.holder._clients["lab2"].has_left)
    assert hosts.holder.verdict() is None


def test_a_member_of_an_older_epoch_is_refused_and_the_meeting_goes_on(hosts):
    old = hosts.client("lab2", epoch=6)
    with pytest.raises(RendezvousFailed, match="this is epoch 7, and lab2 is of epoch 6"):
        old.gather(part(), 1.0)
    came = hosts.gather(hosts.client("lab2"), hosts.holder)
    assert [one.place for one in came] == [1, 0]


def test_a_member_of_a_newer_epoch_waits_until_the_old_meeting_has_ended(hosts):
    early = hosts.client("lab2", epoch=8)
    port = hosts.holder.port

    def replace() -> object:
        wait_until(lambda: len(hosts.turned_away) > 0)
        hosts.holder.close()
        return hosts.keep(RendezvousHost(["lab1", "lab2"], at=(HOME, port), token=TOKEN, epoch=8)).gather(part(), 5.0)

    register = hosts.holder._register
    hosts.holder._register = lambda *words: hosts.turned_away.append(register(*words)) or hosts.turned_away[-1]
    came = at_once(lambda: early.gather(part(), 5.0), replace)
    assert [one.place for one in came] == [1, 0]


def test_strangers_who_say_nothing_do_not_hold_up_the_end(hosts):
    with socket.create_connection((HOME, hosts.holder.port)) as stranger:
        stranger.recv(4096)
        hosts.holder.close()
        stranger.settimeout(5)
        assert stranger.recv(4096) == b""
    assert not [thread for thread in threading.enumerate() if thread.name == "rendezvous of lab1"]


def test_a_message_of_another_epoch_is_not_taken(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    client._talk.send(lines.write("arrived", epoch=6, point=UP))
    assert "epoch 6" in verdict_of(hosts.holder).cause.message
    assert hosts.holder.missing(UP) == ("lab1", "lab2")


def test_whoever_does_not_know_the_token_is_refused_and_learns_nothing(hosts):
    with pytest.raises(RendezvousFailed, match="the token is another"):
        hosts.client("lab2", token="some other token entirely").gather(part(), 1.0)
    with pytest.raises(RendezvousFailed, match="lab9 is not expected"):
        hosts.client("lab9").gather(part(), 1.0)
    assert hosts.holder.verdict() is None


def test_a_holder_that_does_not_know_the_token_is_not_believed():
    def pretend(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(lines.write("challenge", v=1, nonce="0" * 64))
            connection.recv(4096)
            connection.sendall(lines.write("welcome", proof="0" * 64, name="lab1"))
            connection.recv(4096)

    with socket.create_server((HOME, 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        client = RendezvousClient("lab2", at=(HOME, listener.getsockname()[1]), token=TOKEN, epoch=1)
        with pytest.raises(RendezvousFailed, match="does not know the token"):
            client.gather(part(), 5.0)
        thread.join(5)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 5000,
        b"[]\n",
        b'{"kind": "hello"}\n',
        b'{"kind": "hello", "name": "lab2", "nonce": "\\ud800", "epoch": 7, "proof": ""}\n',
        b"\xff\xfe\n",
        b"",
    ],
)
def test_strangers_who_say_anything_else_are_shown_out_and_do_no_harm(hosts, said):
    with socket.create_connection((HOME, hosts.holder.port)) as stranger:
        stranger.recv(4096)
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        while True:
            try:
                if not stranger.recv(4096):
                    break
            except ConnectionError:
                break
    came = hosts.gather(hosts.client("lab2"), hosts.holder)
    assert [one.place for one in came] == [1, 0]


def test_gathering_can_be_cancelled(hosts):
    with pytest.raises(Cancelled):
        hosts.holder.gather(part(), 5.0, lambda: True)


def test_names_tokens_and_epochs_that_can_not_be_are_all_told_before_anything_happens():
    with pytest.raises(BadGang) as told:
        RendezvousHost(["a", "a", ""], at=(HOME, 0), token="short", epoch=-1)
    assert [fault.where for fault in told.value.faults] == ["host", "hosts", "token", "epoch"]


def test_nothing_is_left_of_a_meeting(hosts):
    client = hosts.client("lab2")
    hosts.gather(client, hosts.holder)
    port = hosts.holder.port
    client.close()
    hosts.holder.close()
    hosts.holder.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rendezvous of")]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOME, port))
