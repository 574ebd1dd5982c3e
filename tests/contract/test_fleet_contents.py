"""Trees of code and data, over real HTTP: to a coordinator, from it, from each other; resumed, verified, pruned."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.capability import Capability
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import BadInput, CorruptBytes, Forbidden, HashMismatch, InvalidArchive, NotFound
from stoker.core.frozen import changed
from stoker.host.durable import stamp_of
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Hello, MachineInventory
from stoker.protocol.tree_messages import PACKED_BYTES, SourcesRequest, TreeLocation, frame
from stoker.protocol.view_messages import PruneRequest
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.store.trees import scan_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.peer_files import PeerFiles
from stoker.transfer.peer_server import PeerServer
from stoker.transfer.trees.holdings import check_out, held_tree
from stoker.transfer.trees.tree_download import TreeFetchEstimate, receive_tree
from stoker.transfer.trees.tree_sources import CoordinatorSource, FleetTreeSourceFinder, TreeSourceFinder, peer_opener
from stoker.transfer.trees.tree_upload import FolderFileSource, StoreFileSource, TreeSendResult, send_tree
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One coordinator for all: every test brings trees of its own."""
    folder = tmp_path_factory.mktemp("fleet")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        yield fleet


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what projects have: small files, a large one, an empty one, a program, a link."""
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    own = f"own = {os.urandom(8).hex()!r}\n"
    (root / "train.py").write_text(own)
    (root / "src" / "model.py").write_text(own * 500)
    (root / "src" / "deep" / "same.py").write_text(own * 500)
    (root / "src" / "empty").write_bytes(b"")
    (root / "run.sh").write_text(f"#!/bin/sh\n# {own}")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("src/model.py")
    (root / "large.bin").write_bytes(os.urandom(PACKED_BYTES + 12345))
    return root


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, LocalStore]]:
    made = {name: LocalStore(str(tmp_path / name), clock=CLOCK) for name in ("one", "two", "three")}
    for store in made.values():
        store.open()
    yield made
    for store in made.values():
        store.close()


def sent(fleet: Fleet, root: Path) -> tuple[Tree, TreeSendResult]:
    tree = scan_tree(str(root))
    return tree, send_tree(fleet.client(), tree, FolderFileSource(str(root)))


def alone(fleet: Fleet) -> TreeSourceFinder:
    client = fleet.client()
    return CoordinatorSource(client)


def test_a_tree_arrives_as_it_was(fleet: Fleet, project: Path, stores: dict[str, LocalStore], tmp_path: Path) -> None:
    tree, first = sent(fleet, project)
    assert first.tree == tree.digest()
    outlooks: list[TreeFetchEstimate] = []
    came: list[int] = []
    record = receive_tree(
        alone(fleet),
        tree.digest(),
        stores["one"],
        stop=DownloadStop(),
        clock=CLOCK,
        heed=came.append,
        on_outlook=outlooks.append,
    )
    assert record.tree == tree
    assert (
        sum(came)
        == outlooks[0].missing_bytes
        == sum({e.sha256: e.size_bytes for e in tree.entries if not e.link_to}.values())
    )
    check_out(stores["one"], record, str(tmp_path / "code"))
    assert scan_tree(str(tmp_path / "code")) == tree
    (tmp_path / "code" / "train.py").write_text("changed")
    check_out(stores["one"], record, str(tmp_path / "data"), is_writable=False)
    assert scan_tree(str(tmp_path / "data")) == tree
    assert not os.stat(tmp_path / "data" / "large.bin").st_mode & 0o222
    assert held_tree(stores["one"], tree.digest()) is not None


def test_what_is_there_is_not_sent_again_and_a_changed_line_sends_one_file(fleet: Fleet, project: Path) -> None:
    sent(fleet, project)
    _, again = sent(fleet, project)
    assert (again.sent_files, again.sent_bytes) == (0, 0)
    (project / "train.py").write_text("print('training more')\n")
    _, changed = sent(fleet, project)
    assert (changed.sent_files, changed.sent_bytes) == (1, len("print('training more')\n"))


def test_a_second_machine_takes_only_what_it_lacks(fleet: Fleet, project: Path, stores: dict[str, LocalStore]) -> None:
    tree, _ = sent(fleet, project)
    receive_tree(alone(fleet), tree.digest(), stores["one"], stop=DownloadStop(), clock=CLOCK)
    (project / "train.py").write_text("other")
    changed, _ = sent(fleet, project)
    outlooks: list[TreeFetchEstimate] = []
    receive_tree(
        alone(fleet), changed.digest(), stores["one"], stop=DownloadStop(), clock=CLOCK, on_outlook=outlooks.append
    )
    assert [(outlook.missing_files, outlook.missing_bytes) for outlook in outlooks] == [(1, 5)]


def test_a_tree_of_this_machine_s_store_can_be_sent_small_files_in_the_record_too(
    fleet: Fleet, project: Path, stores: dict[str, LocalStore]
) -> None:
    store, tree = stores["two"], scan_tree(str(project))
    kept, inline = store.take_in(str(project))
    assert (kept, bool(inline)) == (tree, True)
    made = Record.of(key=put_key(kept.digest()), tree=kept, inline=inline, body={})
    store.publish(made)
    sent_bytes = send_tree(fleet.client(), kept, StoreFileSource(store, made)).sent_bytes
    assert sent_bytes == sum({e.sha256: e.size_bytes for e in tree.entries if not e.link_to}.values())
    server = peer(store)
    try:
        hello(fleet, "two", server.url, (tree.digest(),))
        with origins(fleet, "one") as known:
            assert receive_tree(known, tree.digest(), stores["one"], stop=DownloadStop(), clock=CLOCK).tree == tree
    finally:
        server.close()


def test_a_tree_that_nobody_has_is_not_found(fleet: Fleet, stores: dict[str, LocalStore]) -> None:
    with pytest.raises(NotFound):
        receive_tree(alone(fleet), "0" * 64, stores["one"], stop=DownloadStop(), clock=CLOCK)


def test_a_file_that_changed_since_it_was_hashed_is_not_sent(fleet: Fleet, project: Path) -> None:
    tree = scan_tree(str(project))
    (project / "train.py").write_text("print('other')\n")
    with pytest.raises(CorruptBytes, match="changed while it was sent"):
        send_tree(fleet.client(), tree, FolderFileSource(str(project)))
    assert not fleet.client().want_tree(tree.digest()).is_here


def test_a_listing_is_refused_that_is_another_tree_s_or_lacks_files(fleet: Fleet, project: Path) -> None:
    tree, client = scan_tree(str(project)), fleet.client()
    with pytest.raises(HashMismatch):
        client.keep_tree("0" * 64, listing_bytes(tree))
    assert not client.keep_tree(tree.digest(), listing_bytes(tree)).is_here
    with pytest.raises(NotFound):
        client.tree_listing(tree.digest())


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", "C:evil", "nul", "a\\b", "x\n"], ids=range(7))
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused(fleet: Fleet, path: str) -> None:
    data = b"x"
    tree = Tree((TreeEntry(path, 1, digest_bytes(data)),))
    client = fleet.client()
    client.send_pack(frame(digest_bytes(data), data))
    with pytest.raises(InvalidArchive):
        client.keep_tree(tree.digest(), listing_bytes(tree))


def test_a_pack_that_lies_is_refused(fleet: Fleet) -> None:
    client, data = fleet.client(), b"some bytes"
    with pytest.raises(HashMismatch):
        client.send_pack(frame("0" * 64, data))
    with pytest.raises(BadInput, match="in the middle"):
        client.send_pack(frame(digest_bytes(data), data)[:-1])
    assert client.missing([digest_bytes(data)]) == (digest_bytes(data),)
    assert client.send_pack(frame(digest_bytes(data), data)).kept == 1
    assert client.send_pack(frame(digest_bytes(data), data)).known == 1


def test_whoever_has_no_token_sends_nothing(fleet: Fleet) -> None:
    with pytest.raises(Forbidden):
        fleet.client(token="").send_pack(b"")
    with pytest.raises(Forbidden):
        fleet.client(token="").keep_tree("0" * 64, b"")


def test_trees_that_jobs_need_survive_a_prune_and_others_go_with_their_files(fleet: Fleet, project: Path) -> None:
    needed, _ = sent(fleet, project)
    (project / "train.py").write_text("unneeded")
    unneeded, _ = sent(fleet, project)
    client = fleet.client()
    client.submit(Submission(jobs=(changed(order("train"), code_tree=needed.digest()),)))
    asked = PruneRequest(trees_unused_s=0)
    outlook = client.prune(asked)
    assert (outlook.trees > 0, outlook.is_done) == (True, False)
    assert client.want_tree(unneeded.digest()).is_here
    done = client.prune(asked.model_copy(update={"is_wanted": True}))
    assert (done.trees, done.tree_bytes, done.stuck) == (outlook.trees, outlook.tree_bytes, ())
    assert client.want_tree(needed.digest()).is_here
    assert not client.want_tree(unneeded.digest()).is_here
    gone = Digest(digest_bytes(b"unneeded"))
    assert client.missing([gone, *[entry.sha256 for entry in needed.entries if not entry.link_to]]) == (gone,)


def peer(store: LocalStore) -> PeerServer:
    server = PeerServer(PeerFiles(store, clock=CLOCK), clock=CLOCK)
    server.start()
    return server


def hello(fleet: Fleet, name: str, url: str, trees: tuple[str, ...] = ()) -> None:
    found = Capability(
        hostname=name, os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=1 << 36, ram_available_bytes=1 << 36
    )
    said = Hello(
        worker=name,
        incarnation=f"incarnation-{name}",
        capability=found.to_dict(),
        capability_digest="d",
        holdings=MachineInventory(trees=trees),
        contents_at=url,
    )
    fleet.client().hello(said)


def origins(fleet: Fleet, name: str) -> FleetTreeSourceFinder:
    client = fleet.client()
    return FleetTreeSourceFinder(client, worker=name, open_peer=peer_opener(None, clock=CLOCK))


def test_a_machine_gets_a_tree_from_another_that_has_it(
    fleet: Fleet, project: Path, stores: dict[str, LocalStore]
) -> None:
    tree, _ = sent(fleet, project)
    receive_tree(alone(fleet), tree.digest(), stores["one"], stop=DownloadStop(), clock=CLOCK)
    server = peer(stores["one"])
    try:
        hello(fleet, "one", server.url, (tree.digest(),))
        hello(fleet, "two", "")
        with origins(fleet, "two") as known:
            assert [origin.machine for origin in known.find(tree.digest(), frozenset())] == ["one", ""]
        # Whatever it sends, the coordinator sends no byte.
        fleet.keeping.objects.remove(next(e.sha256 for e in tree.entries if e.path == "large.bin"))
        with origins(fleet, "two") as known:
            record = receive_tree(known, tree.digest(), stores["two"], stop=DownloadStop(), clock=CLOCK)
        assert record.tree == tree
    finally:
        server.close()


def test_a_machine_that_is_gone_or_lies_is_left_for_the_coordinator(
    fleet: Fleet, project: Path, stores: dict[str, LocalStore]
) -> None:
    tree, _ = sent(fleet, project)
    receive_tree(alone(fleet), tree.digest(), stores["one"], stop=DownloadStop(), clock=CLOCK)
    entry = next(entry for entry in tree.entries if entry.path == "large.bin")
    blob = stores["one"].places.blob(entry.sha256)
    info = os.stat(blob)
    os.chmod(blob, 0o600)
    with open(blob, "r+b") as file:
        file.write(b"wrong")
    os.utime(blob, ns=(info.st_atime_ns, info.st_mtime_ns))
    changed = os.lstat(blob)
    stores["one"].memo.remember(entry.sha256, stamp_of(changed), entry.sha256)
    liar = peer(stores["one"])
    gone = peer(stores["three"])
    gone.close()
    try:
        hello(fleet, "liar", liar.url, (tree.digest(),))
        hello(fleet, "gone", gone.url, (tree.digest(),))
        with origins(fleet, "two") as known:
            record = receive_tree(known, tree.digest(), stores["two"], stop=DownloadStop(), clock=CLOCK)
        assert record.tree == tree
        assert stores["two"].holds(entry, heed=lambda _: None)
    finally:
        liar.close()


def test_three_machines_take_a_tree_once_from_the_coordinator(
    fleet: Fleet, project: Path, stores: dict[str, LocalStore]
) -> None:
    (project / "large.bin").write_bytes(os.urandom(8 << 20))
    tree, _ = sent(fleet, project)
    servers = {name: peer(store) for name, store in stores.items()}
    try:
        for name, server in servers.items():
            hello(fleet, name, server.url)
        opened: list[str] = []
        bundles = fleet.keeping.bundles
        plain_open = bundles.open

        def counted(sha256: str, **named: int) -> object:
            opened.append(sha256)
            return plain_open(sha256, **named)

        bundles.open = counted  # type: ignore[method-assign, assignment]

        def bring(name: str) -> None:
            with origins(fleet, name) as known:
                receive_tree(known, tree.digest(), stores[name], stop=DownloadStop(), clock=CLOCK)

        threads = [threading.Thread(target=bring, args=(name,)) for name in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        bundles.open = plain_open  # type: ignore[method-assign]
        large = next(entry.sha256 for entry in tree.entries if entry.path == "large.bin")
        assert opened.count(large) == 1
        for store in stores.values():
            assert held_tree(store, tree.digest()) is not None
    finally:
        for server in servers.values():
            server.close()


def test_sources_are_told_to_workers_in_a_chain(fleet: Fleet, project: Path) -> None:
    tree, _ = sent(fleet, project)
    client = fleet.client()
    for name in ("one", "two", "three"):
        hello(fleet, name, f"http://127.0.0.1:1/{name}")

    def asked(name: str, *failed: str) -> list[tuple[str, bool]]:
        (told,) = client.sources(SourcesRequest(worker=name, trees=(tree.digest(),), failed=failed)).trees
        return [(place.machine, place.is_partial) for place in told.places]

    assert asked("one") == [("", False)]
    assert asked("two") == [("one", True), ("", False)]
    assert asked("three") == [("two", True), ("", False)]
    # Asked again, each keeps its place; a machine that failed is not named again.
    assert asked("one") == [("", False)]
    assert asked("three", "two") == [("one", True), ("", False)]
    assert client.sources(SourcesRequest(worker="one", trees=("0" * 64,))).trees[0].places == ()


def test_a_peer_s_place_is_opened_plainly_on_loopback_alone() -> None:
    opened = peer_opener(None, clock=CLOCK)
    assert opened(TreeLocation(machine="x", url="http://127.0.0.1:1")) is not None
    assert opened(TreeLocation(machine="x", url="http://192.0.2.1:1")) is None
    assert opened(TreeLocation(machine="x", url="https://192.0.2.1:1")) is None
