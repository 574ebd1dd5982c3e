"""The real transport over real sockets: what it sends, keeps, refuses, waits for and never tells."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from stoker.core.errors import BadAnswer, BadInput, NetworkFailed, StokerError
from stoker.host.http import client, connections
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.connections import expect_life
from stoker.host.http.exchange import HttpSettings, Request
from tests.servers import habits
from tests.servers.faulty import Act, Answer, Asked, FaultyServer, Habit, Line, Version, well

FILE = Version(data=b"the whole of it")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(FILE) as server:
        yield server


@pytest.fixture
def transport() -> Iterator[Urllib3Transport]:
    with closing(
        Urllib3Transport(HttpSettings(connect_s=5, head_s=5, read_s=5, user_agent="stoker/test"))
    ) as transport:
        yield transport


def _get(transport: Urllib3Transport, url: str, method: str = "GET", **headers: str) -> bytes:
    with closing(transport.send(Request(url=url, method=method, headers=headers))) as reply:
        return b"".join(iter(lambda: reply.read(1 << 20), b""))


def _failure(transport: Urllib3Transport, url: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        _get(transport, url)
    assert "\n" not in caught.value.message
    return caught.value


def _raw(*pieces: bytes | Act) -> Habit:
    """Answer with exactly this, head and all."""
    return lambda asked, version: Answer(raw_head=b"", body=pieces, sends_body_of_head=True)


# What goes out.


def test_a_request_carries_what_was_given_and_what_the_protocol_needs(server, transport):
    _get(transport, server.url + "?q=%20#part", Range="bytes=0-", authorization="Bearer x")
    (asked,) = server.asked
    assert asked.target == "/file?q=%20"
    assert dict(asked.fields) == {
        "Host": f"127.0.0.1:{server.port}",
        "User-Agent": "stoker/test",
        "Range": "bytes=0-",
        "Authorization": "Bearer x",
        "Accept-Encoding": "identity",
    }


def test_no_encoding_is_ever_asked_for(server, transport):
    _get(transport, server.url, **{"accept-encoding": "gzip", "user-agent": "mine"})
    assert server.asked[0].field("Accept-Encoding") == "identity"
    assert server.asked[0].field("User-Agent") == "mine"


def test_a_name_and_password_in_the_address_are_sent_as_such(server, transport):
    with closing(transport.send(Request(url=server.url.replace("://", "://us:pw@"), headers={}))) as reply:
        assert reply.url == server.url
    assert server.asked[0].field("Authorization") == "Basic dXM6cHc="
    assert server.asked[0].target == "/file"


@pytest.mark.parametrize("value", ["secret\n", "secret\r\nX: y", "secret\x00", "secret\u20ac", "secret\x7f"])
def test_a_header_that_can_not_be_sent_is_refused_and_not_told(server, transport, value):
    with pytest.raises(BadInput) as caught:
        _get(transport, server.url, Authorization=value)
    assert "Authorization" in caught.value.message
    assert "secret" not in str(caught.value.to_dict())
    assert server.connections == 0


# What is kept.


def test_a_connection_serves_one_request_after_the_other(server, transport):
    for method in ("GET", "HEAD", "GET"):
        _get(transport, server.url, method)
    assert _get(transport, f"{server.origin}/missing") == b""
    assert server.connections == 1


def test_threads_share_connections_and_each_has_one_of_its_own_meanwhile(server, transport):
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: _get(transport, server.url), range(200))) == {FILE.data}
    assert server.connections <= 8


def test_no_more_connections_are_kept_than_was_said(server):
    with closing(Urllib3Transport(HttpSettings(idle_connections=2))) as transport:
        for _ in range(2):
            replies = [transport.send(Request(url=server.url, headers={})) for _ in range(5)]
            for reply in replies:
                reply.close()
    assert server.connections == 8


def test_a_small_rest_is_read_so_that_the_connection_can_be_kept(server, transport):
    server.become(habits.page(b"Found. Look elsewhere.", 302, Location="/elsewhere"))
    for _ in range(3):
        transport.send(Request(url=server.url, headers={})).close()
    assert server.connections == 1


@pytest.mark.timing
def test_a_large_rest_is_not_read(server, transport):
    server.become(well, Version(data=b"x" * 20_000_000))
    started_s = time.monotonic()
    for _ in range(3):
        with closing(transport.send(Request(url=server.url, headers={}))) as reply:
            assert reply.read(10)
            before_bytes = reply._wire.received_bytes
        assert reply._wire.received_bytes == before_bytes
    assert server.connections == 3
    assert time.monotonic() - started_s < 5


@pytest.mark.timing
@pytest.mark.parametrize("rest", [b"", b"5\r\nhel"], ids=["a length", "chunks"])
def test_a_rest_that_does_not_come_is_not_waited_for(server, transport, rest):
    head = b"Transfer-Encoding: chunked" if rest else b"Content-Length: 10"
    server.become(_raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + rest, Line.stall))
    reply = transport.send(Request(url=server.url, headers={}))
    started_s = time.monotonic()
    reply.close()
    assert time.monotonic() - started_s < 2


def test_a_connection_whose_server_goes_on_after_the_end_is_not_kept(server, transport):
    server.become(
        _raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    )
    for _ in range(2):
        with closing(transport.send(Request(url=server.url, headers={}))) as reply:
            assert reply.read(100) == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("field", [("Connection", "close"), ("Connection", "Keep-Alive, Close")])
def test_a_connection_that_the_server_gives_up_is_not_kept_but_read_to_its_end(server, transport, field):
    def ending(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked)
        right.fields.append(field)
        right.is_last = True
        return right

    server.become(ending)
    assert _get(transport, server.url) == _get(transport, server.url) == FILE.data
    assert server.connections == 2


def test_a_connection_that_was_silent_for_long_is_not_trusted(server, transport, monkeypatch):
    _get(transport, server.url)
    monkeypatch.setattr(client, "LONGEST_IDLE_S", 0.0)
    _get(transport, server.url)
    assert server.connections == 2


def test_a_transport_that_is_closed_keeps_nothing(server, transport):
    reply = transport.send(Request(url=server.url, headers={}))
    transport.close()
    assert reply.read(100) == FILE.data
    reply.close()
    assert _get(transport, server.url) == FILE.data
    assert server.connections == 2


def test_http_1_0_is_understood(server, transport):
    server.become(_raw(b"HTTP/1.0 200 OK\r\n\r\nall until the end", Line.close))
    assert _get(transport, server.url) == b"all until the end"


def test_a_kept_connection_that_ended_meanwhile_is_replaced_without_a_word(server, transport):
    _get(transport, server.url)
    server.hang_up()
    assert _get(transport, server.url) == FILE.data
    assert len(server.asked) == 2


@pytest.mark.parametrize("end", [Line.close, Line.reset])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_kept_connection_that_ends_as_the_request_arrives_is_replaced_once(server, transport, end, method):
    server.become(
        lambda asked, version: (
            _raw(end)(asked, version) if asked.connection == 0 and server.asked[1:] else well(asked, version)
        )
    )
    _get(transport, server.url)
    _get(transport, server.url, method)
    assert [asked.connection for asked in server.asked] == [0, 0, 1]


def test_a_request_that_changes_something_is_never_sent_twice(server, transport):
    _get(transport, server.url)
    server.become(_raw(Line.close))
    with pytest.raises(NetworkFailed):
        _get(transport, server.url, "DELETE")
    assert len(server.asked) == 1


def test_a_new_connection_that_ends_without_an_answer_is_a_failure(server, transport):
    server.become(_raw(Line.close))
    assert _failure(transport, server.url).data["reason"] == "closed_early"
    assert len(server.asked) == 1


def test_a_kept_connection_that_ends_within_an_answer_is_a_failure(server, transport):
    _get(transport, server.url)
    server.become(_raw(b"HTTP/1.1 200 OK\r\nContent-Le", Line.close))
    assert _failure(transport, server.url).data["reason"] == "closed_early"
    assert len(server.asked) == 1


# Heads that are none.


@pytest.mark.parametrize(
    "head",
    [
        *(b"SSH-2.0-OpenSSH\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 2_00 OK\r\n\r\n"),
        *(
            b"HTTP/1.1 99 No\r\n\r\n",
            b"HTTP/1.1 1000 No\r\n\r\n",
            b"HTTP/1.1  200 OK\r\n\r\n",
            b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        ),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nno colon here\r\nX: y\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length : 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n Content-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\n" * 50 + b"HTTP/1.1 200 OK\r\n\r\n",
        (b"HTTP/1.1 103 Hints\r\n" + (b"X: " + b"y" * 60_000 + b"\r\n") * 10 + b"\r\n"),
    ],
)
def test_a_head_that_is_none_is_refused(server, transport, head):
    server.become(_raw(head, Line.stall))
    error = _failure(transport, server.url + "?sig=secret")
    assert isinstance(error, BadAnswer)
    assert error.data["reason"] == "protocol"
    assert str(server.port) in error.message
    assert "secret" not in str(error.to_dict())
    assert len(error.message) < 200


def test_a_head_cut_at_any_byte_is_never_taken_for_a_whole_one(server, transport):
    whole = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 0\r\n\r\n"
    for size in range(len(whole)):
        server.become(_raw(whole[:size], Line.close))
        error = _failure(transport, server.url)
        assert error.data["reason"] == "closed_early", size
    server.become(_raw(whole, Line.close))
    assert _get(transport, server.url) == b""


def test_interim_answers_are_skipped(server, transport):
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    server.become(_raw(interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    assert _get(transport, server.url) == _get(transport, server.url) == b"ok"
    assert server.connections == 1


def test_a_folded_field_and_bare_line_feeds_are_understood(server, transport):
    server.become(_raw(b"HTTP/1.1 200 OK\nX: a\n b\nContent-Length: 2\n\nok"))
    with closing(transport.send(Request(url=server.url, headers={}))) as reply:
        assert reply.read(10) == b"ok"
        assert (reply.headers.get("X") or "").split() == ["a", "b"]


# Waiting, and being stopped.


@pytest.mark.timing
def test_a_head_has_one_deadline_however_it_trickles_in(server):
    def drip(line: Line) -> None:
        with contextlib.suppress(OSError):
            while True:
                line.send(b"x")
                line.link.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    if not line.link.recv(1):
                        return

    server.become(_raw(b"HTTP/1.1 200 OK\r\nX: ", drip))
    with closing(Urllib3Transport(HttpSettings(head_s=0.2))) as transport:
        started_s = time.monotonic()
        error = _failure(transport, server.url)
        assert time.monotonic() - started_s < 2
    assert error.data["reason"] == "read_timeout"


def test_a_body_that_falls_silent_is_a_failure_after_what_it_brought(server):
    server.become(_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nsome", Line.stall))
    with (
        closing(Urllib3Transport(HttpSettings(read_s=0.15))) as transport,
        closing(transport.send(Request(url=server.url, headers={}))) as reply,
    ):
        assert reply.read(100) == b"some"
        with pytest.raises(NetworkFailed) as caught:
            reply.read(100)
    assert caught.value.data["reason"] == "read_timeout"


def test_a_reset_within_the_body_is_told_apart_from_an_end(server, transport):
    server.become(_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nsome", Line.reset))
    assert _failure(transport, server.url).data["reason"] == "reset"


# Sooner than anything that the transport waits for by itself.
SOON_S = 4


def _aborted_while(transport: Urllib3Transport, url: str, started: Callable[[], object]) -> float:
    """Stop a transport once somebody waits; give how long it took to wake it."""
    aborted_s: list[float] = []

    def abort() -> None:
        deadline_s = time.monotonic() + 5
        while not started() and time.monotonic() < deadline_s:
            time.sleep(0.002)
        aborted_s.append(time.monotonic())
        transport.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    error = _failure(transport, url)
    woken_s = time.monotonic()
    thread.join()
    assert error.data["reason"] == "aborted"
    return woken_s - aborted_s[0]


def test_whoever_waits_for_a_head_is_woken_by_an_abort(server, transport):
    server.become(_raw(Line.stall))
    assert _aborted_while(transport, server.url, lambda: server.asked) < SOON_S


def test_whoever_waits_for_a_connection_is_woken_by_an_abort(transport):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        assert _aborted_while(transport, url, lambda: transport._under_way) < SOON_S


def test_whoever_waits_for_tls_is_woken_by_an_abort(transport):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=lambda: accepted.append(silent.accept()[0]))
        thread.start()
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        assert _aborted_while(transport, url, lambda: accepted) < SOON_S
        thread.join()
        accepted[0].close()


def test_whoever_waits_for_a_name_is_woken_by_an_abort(transport, monkeypatch):
    asked, may_answer = threading.Event(), threading.Event()

    def slow(*_args: object, **_options: object) -> list[object]:
        asked.set()
        may_answer.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert _aborted_while(transport, "http://slow.test/", asked.is_set) < SOON_S
    may_answer.set()


def test_a_signal_may_abort_what_its_own_thread_waits_for(server, transport):
    server.become(_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", Line.stall))
    before = signal.signal(signal.SIGALRM, lambda *_: transport.abort())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert _failure(transport, server.url).data["reason"] == "aborted"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_exception_from_a_signal_leaves_nothing_open(server, transport):
    """An engine may raise right through a request that waits."""

    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    server.become(_raw(Line.stall))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises((Stopped, StokerError)):  # noqa: PT012 - it may come before the request waits
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            transport.send(Request(url=server.url, headers={}))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not transport._under_way


@pytest.mark.timing
def test_an_abort_ends_everything_that_is_under_way_at_once(server, transport):
    server.become(_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", Line.stall))
    with ThreadPoolExecutor(8) as pool:
        failures = [pool.submit(_failure, transport, server.url) for _ in range(8)]
        while len(server.asked) < 8:
            time.sleep(0.002)
        started_s = time.monotonic()
        transport.abort()
        assert {failure.result().data["reason"] for failure in failures} == {"aborted"}
    assert time.monotonic() - started_s < SOON_S


def test_failures_leave_no_descriptor_open(server, transport):
    def fail(*pieces: bytes | Act) -> None:
        server.become(_raw(*pieces))
        _failure(transport, server.url)

    def all_of_them() -> None:
        fail(Line.close)
        fail(b"rubbish\r\n", Line.close)
        fail(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
        fail(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Line.close)
        _failure(transport, server.url.replace("http:", "https:"))
        _failure(transport, f"http://127.0.0.2:{server.port}/")

    def ours() -> int:
        # The server's ends of the same connections close when its threads get to it: they don't count.
        gc.collect()
        return sum(str(server.port) not in name for name in _open_socket_names())

    all_of_them()
    before = ours()
    for _ in range(3):
        all_of_them()
    assert ours() <= before


def _open_socket_names() -> Iterator[str]:
    for thing in gc.get_objects():
        # By its type alone: whatever other tests have imported may object to being asked for its class.
        if issubclass(type(thing), socket.socket) and thing.fileno() >= 0:
            # Another thread may close it just now.
            with contextlib.suppress(OSError):
                yield str(thing.getsockname())


def test_an_exchange_that_is_over_is_forgotten(server, transport):
    _get(transport, server.url)
    server.become(_raw(Line.close))
    _failure(transport, server.url)
    assert not transport._under_way


# What is imported when.


def test_urllib3_is_imported_with_the_first_request():
    program = (
        "import sys\n"
        "from stoker.host.http.client import Urllib3Transport\n"
        "from stoker.host.http.client import follow\n"
        "from stoker.host.http.exchange import HttpSettings, read_http_settings\n"
        "Urllib3Transport(read_http_settings({})).close()\n"
        "assert 'urllib3' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_computer_that_gives_no_sign_of_life_is_not_waited_for_longer_than_told(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is cut makes no sound: the system has to be told to ask, and when to give up."""
    found: list[float] = []

    def look(connected: socket.socket, unheard_s: float) -> None:
        expect_life(connected, unheard_s)
        read = [connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in _LIFE]
        idle_s, every_s, count, sent_ms = read
        found.extend((idle_s + every_s * count, sent_ms / 1000))

    monkeypatch.setattr(connections, "expect_life", look)
    for unheard_s in (None, 5.0):
        settings = HttpSettings(connect_s=5, head_s=5, read_s=5, unheard_s=unheard_s)
        with closing(Urllib3Transport(settings)) as transport:
            assert _get(transport, server.url) == FILE.data
    assert found == [pytest.approx(5.0, abs=1.0), 5.0]


_LIFE = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
