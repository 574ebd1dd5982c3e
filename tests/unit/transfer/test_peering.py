"""What a machine gives to others of its fleet: to whom, how much, how fast, and while it is still coming."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, NetworkFailed, NoCoordinator, NotFound, StokerError
from stoker.host.durable import remove_tree
from stoker.host.http.exchange import FleetIdentity
from stoker.protocol.tree_messages import PACK_BYTES, PACKED_BYTES, TreeLocation
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.transfer import peer_server
from stoker.transfer import peer_server as server_module
from stoker.transfer.download.partial import PART, SIDECAR, Sidecar, dump_sidecar
from stoker.transfer.peer_files import PeerFiles
from stoker.transfer.peer_server import MOST_CONNECTIONS, OwnContext, PeerRateLimit, PeerServer, share_trees
from stoker.transfer.trees.holdings import HeldTrees, note_held
from stoker.transfer.trees.tree_sources import own_address_towards, peer_opener
from tests.unit.worker.peers import Authority

CLOCK = SystemClock()
PATIENCE_S = 30.0
DATA = os.urandom(300_000)
DIGEST = digest_bytes(DATA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"), clock=CLOCK)
    store.open()
    yield store
    store.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def kept(store: LocalStore, *files: bytes) -> Tree:
    """Put a tree into a store, as if it had come."""
    staging = store.new_staging("test")
    for number, data in enumerate(files):
        Path(staging, f"f{number}").write_bytes(data)
    tree, inline = store.take_in(staging)
    store.publish(Record.of(key=put_key(tree.digest()), tree=tree, inline=inline, body={}))
    note_held(store, tree.digest())
    remove_tree(staging)
    return tree


@contextmanager
def serving(store: LocalStore, identity: FleetIdentity | None = None) -> Iterator[PeerServer]:
    contexts = OwnContext(identity).current if identity is not None else None
    server = PeerServer(PeerFiles(store, clock=CLOCK), clock=CLOCK, contexts=contexts)
    server.start()
    try:
        yield server
    finally:
        server.close()


def asked(server: PeerServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)) as line:
        line.request("GET", path, headers=headers)
        reply = line.getresponse()
        return reply.status, reply.read(), dict(reply.headers)


def test_files_are_given_whole_and_in_ranges(store: LocalStore) -> None:
    kept(store, DATA)
    path = f"/v1/objects/{DIGEST}"
    with serving(store) as server:
        assert asked(server, path)[:2] == (200, DATA)
        status, data, headers = asked(server, path, Range="bytes=100-199")
        assert (status, data, headers["Content-Range"]) == (206, DATA[100:200], f"bytes 100-199/{len(DATA)}")
        assert asked(server, path, Range=f"bytes={len(DATA) - 1}-")[:2] == (206, DATA[-1:])
        assert asked(server, path, Range=f"bytes={len(DATA)}-")[0] == 416
        assert asked(server, path, Range="bytes=nonsense")[:2] == (200, DATA)


@pytest.mark.parametrize(
    "path", ["/", "/v1/objects/../../etc/passwd", f"/v1/objects/{'0' * 64}", "/v1/trees/x", "/v1/jobs"], ids=range(5)
)
def test_there_is_nothing_else_to_be_had(store: LocalStore, path: str) -> None:
    with serving(store) as server:
        assert asked(server, path)[0] == 404


def test_a_question_that_is_too_long_or_none_is_refused(store: LocalStore) -> None:
    with serving(store) as server:
        for body, headers in ((b"{}", {}), (b"not json", {}), (b"", {"Content-Length": str(1 << 30)})):
            with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)) as line:
                line.request("POST", "/v1/contents/fetch", body, headers)
                assert line.getresponse().status == 400


def test_no_question_gets_more_than_a_pack_and_who_asks_again_gets_the_rest(store: LocalStore) -> None:
    files = [bytes([number]) * PACKED_BYTES for number in range(9)]
    kept(store, *files)
    left = [digest_bytes(data) for data in files]
    shelf = PeerFiles(store, clock=CLOCK)
    first = [digest for digest, _ in shelf.small(tuple(left))]
    assert first == left[: PACK_BYTES // PACKED_BYTES - 1]
    assert [digest for digest, _ in shelf.small(tuple(left[len(first) :]))] == left[len(first) :]


def test_nobody_is_asked_without_tls_in_a_fleet_of_several_machines(authority: Authority) -> None:
    near, far = (
        TreeLocation(machine="lab1", url="http://127.0.0.1:9"),
        TreeLocation(machine="lab1", url="http://192.0.2.1:9"),
    )
    assert peer_opener(authority.identity("lab2"), clock=CLOCK)(near) is None
    assert peer_opener(None, clock=CLOCK)(far) is None
    opened = peer_opener(None, clock=CLOCK)(near)
    assert opened is not None
    opened.http.close()


def test_nothing_listens_beyond_loopback_without_tls(store: LocalStore) -> None:
    with pytest.raises(BadInput, match="only over TLS"):
        PeerServer(PeerFiles(store, clock=CLOCK), clock=CLOCK, host="0.0.0.0")
    assert "no certificate" in str(share_trees("https://192.0.2.1:1", None, store, clock=CLOCK, admits=lambda _: True))


def test_a_worker_without_a_certificate_serves_no_trees_on_loopback_either(store: LocalStore) -> None:
    for identity in (None, FleetIdentity(sockets=("/run/mine/7717.sock",))):
        told = share_trees("http://127.0.0.1:7717", identity, store, clock=CLOCK, admits=lambda _: True)
        assert told == "this worker has no certificate"


def test_a_file_that_grows_is_passed_on_as_it_comes(store: LocalStore) -> None:
    os.makedirs(store.places.incoming)
    part = Path(store.places.incoming, f"{DIGEST}{PART}")
    Path(store.places.incoming, f"{DIGEST}{SIDECAR}").write_bytes(
        dump_sidecar(Sidecar(url="http://x", size_bytes=len(DATA), sha256=DIGEST))
    )
    part.write_bytes(DATA[:1000])
    with serving(store) as server, closing(_line(server)) as line:
        line.request("GET", f"/v1/objects/{DIGEST}")
        reply = line.getresponse()
        assert reply.headers["Content-Length"] == str(len(DATA))
        assert reply.read(1000) == DATA[:1000]
        with part.open("ab") as file:
            file.write(DATA[1000:5000])
        assert reply.read(4000) == DATA[1000:5000]
        # What is renamed while it is given is still the same file.
        with part.open("ab") as file:
            file.write(DATA[5000:])
        part.rename(part.with_name(DIGEST))
        assert reply.read() == DATA[5000:]


def test_a_file_that_is_given_up_breaks_off_and_does_not_end(store: LocalStore) -> None:
    os.makedirs(store.places.incoming)
    part = Path(store.places.incoming, f"{DIGEST}{PART}")
    Path(store.places.incoming, f"{DIGEST}{SIDECAR}").write_bytes(
        dump_sidecar(Sidecar(url="http://x", size_bytes=len(DATA), sha256=DIGEST))
    )
    part.write_bytes(DATA[:1000])
    with serving(store) as server, closing(_line(server)) as line:
        line.request("GET", f"/v1/objects/{DIGEST}")
        reply = line.getresponse()
        assert reply.read(1000) == DATA[:1000]
        part.unlink()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reply.read()


def _line(server: PeerServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)


def test_the_listing_of_a_tree_on_its_way_is_given(store: LocalStore) -> None:
    os.makedirs(store.places.incoming)
    tree = Tree((TreeEntry("f", 1, digest_bytes(b"x")),))
    Path(store.places.incoming, f"{tree.digest()}.listing").write_bytes(listing_bytes(tree))
    with serving(store) as server:
        assert asked(server, f"/v1/trees/{tree.digest()}")[:2] == (200, listing_bytes(tree))


def test_no_more_connections_than_there_may_be(store: LocalStore) -> None:
    kept(store, DATA)
    with serving(store) as server, ExitStack() as lines:
        for _ in range(MOST_CONNECTIONS):
            line = lines.enter_context(closing(_line(server)))
            line.request("GET", f"/v1/objects/{DIGEST}")
            # Who has an answer has a place, and keeps it while its line is open.
            assert line.getresponse().read() == DATA
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            asked(server, f"/v1/objects/{DIGEST}")


def test_a_slow_asker_is_cut(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SILENCE_S", 0.2)
    with serving(store) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
            line.sendall(b"GET /v1/obj")
            assert line.recv(100) == b""


def test_bytes_leave_no_faster_than_they_may() -> None:
    clock, over = FakeClock(), threading.Event()
    waited: list[float] = []
    over.wait = lambda timeout=None: bool(waited.append(timeout or 0.0))  # type: ignore[method-assign]
    pace = PeerRateLimit(1000.0, clock)
    for _ in range(3):
        pace.wait(500, over)
    assert waited == [0.5, 1.0]
    PeerRateLimit(None, clock).wait(1 << 40, over)
    assert len(waited) == 2


def test_machines_of_one_fleet_give_to_each_other_over_tls(store: LocalStore, authority: Authority) -> None:
    tree = kept(store, DATA, b"small")
    with serving(store, authority.identity("lab1")) as server:
        assert server.url.startswith("https://")
        opened = peer_opener(authority.identity("lab2"), clock=CLOCK)(TreeLocation(machine="lab1", url=server.url))
        assert opened is not None
        line = opened
        with closing(line.http):
            assert line.tree_listing(tree.digest()) == listing_bytes(tree)
            with line.fetch_contents([digest_bytes(b"small")]) as files:
                assert list(files) == [(digest_bytes(b"small"), b"small")]
            with pytest.raises(NotFound):
                line.tree_listing("0" * 64)


def test_another_machine_in_the_place_of_the_one_that_is_meant_is_refused(
    store: LocalStore, authority: Authority
) -> None:
    tree = kept(store, b"x")
    with serving(store, authority.identity("lab3")) as server:
        opened = peer_opener(authority.identity("lab2"), clock=CLOCK)(TreeLocation(machine="lab1", url=server.url))
        assert opened is not None
        with closing(opened.http), pytest.raises(NoCoordinator, match="lab3 responds instead of lab1"):
            opened.tree_listing(tree.digest())


def test_strangers_are_refused_by_the_handshake(store: LocalStore, authority: Authority, tmp_path: Path) -> None:
    tree = kept(store, b"x")
    with serving(store, authority.identity("lab1")) as server:
        stranger = Authority(tmp_path / "stranger").identity("lab2")
        theirs = FleetIdentity(ca_file=str(authority.ca_file), certificate_file=stranger.certificate_file)
        for identity in (theirs, stranger):
            opened = peer_opener(identity, clock=CLOCK)(TreeLocation(machine="lab1", url=server.url))
            assert opened is not None
            with closing(opened.http), pytest.raises(StokerError) as refused:
                opened.tree_listing(tree.digest())
            assert isinstance(refused.value, NoCoordinator | NetworkFailed)
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        context.check_hostname = False
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            assert _said_to_nobody(context, raw) == b""


def _said_to_nobody(context: ssl.SSLContext, raw: socket.socket) -> bytes:
    """Ask without a certificate, and give what is answered before the line is cut."""
    try:
        with context.wrap_socket(raw) as line:
            line.sendall(b"GET /v1/trees/x HTTP/1.1\r\nHost: x\r\n\r\n")
            return line.recv(100)
    except OSError:
        return b""


def test_strangers_who_say_nothing_take_no_machines_place(
    store: LocalStore, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "HANDSHAKE_S", 60.0)
    tree = kept(store, DATA)
    with serving(store, authority.identity("lab1")) as server, ExitStack() as held:
        at = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        connect = partial(socket.create_connection, at, timeout=PATIENCE_S)
        # As many as one address may have, and more than there are places for machines.
        for number in range(4):
            for _ in range(peer_server.MOST_EACH):
                held.enter_context(connect(source_address=(f"127.8.8.{number + 1}", 0)))
        with connect(source_address=("127.8.8.1", 0)) as turned_away:
            assert turned_away.recv(1) == b""
        opened = peer_opener(authority.identity("lab2"), clock=CLOCK)(TreeLocation(machine="lab1", url=server.url))
        assert opened is not None
        with closing(opened.http):
            assert opened.tree_listing(tree.digest())


def test_who_dribbles_a_handshake_is_cut(
    store: LocalStore, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "HANDSHAKE_S", 0.2)
    with serving(store, authority.identity("lab1")) as server:
        at = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(at, timeout=PATIENCE_S) as line, suppress(ConnectionError):
            line.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert line.recv(1) == b""


def test_a_renewed_certificate_is_shown_without_a_restart(store: LocalStore, authority: Authority) -> None:
    identity = authority.identity("lab1")
    context = OwnContext(identity)
    first = context.current()
    assert context.current() is first
    with serving(store, identity) as server:
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        client = ssl.create_default_context(cafile=str(authority.ca_file))
        client.check_hostname = False
        own = authority.identity("lab2").certificate_file
        client.load_cert_chain(own, own)

        def serial() -> str:
            with (
                socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw,
                client.wrap_socket(raw) as line,
            ):
                told = line.getpeercert()
                assert told is not None
                return str(told["serialNumber"])

        before = serial()
        assert serial() == before
        authority.identity("lab1")
        assert serial() != before


def test_what_is_held_is_told_until_it_is_pruned(store: LocalStore) -> None:
    held = HeldTrees(store)
    assert held.look() == ()
    one, two = kept(store, b"one" * 9999), kept(store, b"two" * 9999)
    assert held.look() == tuple(sorted((one.digest(), two.digest())))
    found = store.peek(put_key(one.digest()))
    assert isinstance(found, Record)
    store.swap(found, found.without_bytes())
    assert held.look() == (two.digest(),)
    other = store.peek(put_key(two.digest()))
    assert isinstance(other, Record)
    store.swap(other, None)
    assert held.look() == ()
    assert Digest(two.digest()) not in os.listdir(store.places.held)


def test_a_machine_knows_its_own_address_towards_its_coordinator() -> None:
    assert own_address_towards("http://127.0.0.1:7717") == "127.0.0.1"
    assert own_address_towards("http://does-not-exist.invalid:1") == ""
