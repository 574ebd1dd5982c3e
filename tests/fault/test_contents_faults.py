"""Trees on their way: cut lines, killed receivers, wrong bytes, full disks. All is resumed, nothing wrong is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.digests import Tree
from stoker.core.errors import Cancelled, HashMismatch, NoSpace
from stoker.host.durable import stamp_of
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.tree_messages import PACKED_BYTES
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.trees import scan_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.holdings import held_tree
from stoker.transfer.trees.tree_download import TreeFetchEstimate, receive_tree
from stoker.transfer.trees.tree_sources import CoordinatorSource
from stoker.transfer.trees.tree_upload import FolderFileSource, send_tree
from tests.fault.test_store_kills import assert_nothing_is_torn
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.relay import Relay
from tests.unit.host.real_mounts import small_disk

CLOCK = SystemClock()
CHILD = Path(__file__).parent / "tree_child.py"
SMALL, LARGE = 40, PACKED_BYTES * 3


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        yield fleet


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(SMALL):
        (root / f"{number:02}.bin").write_bytes(os.urandom(3000))
    (root / "large.bin").write_bytes(os.urandom(LARGE))
    return root


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"), clock=CLOCK)
    store.open()
    yield store
    store.close()


def port_of(fleet: Fleet) -> int:
    return int(fleet.url.rpartition(":")[2])


def sent(fleet: Fleet, root: Path) -> Tree:
    tree = scan_tree(str(root))
    send_tree(fleet.client(), tree, FolderFileSource(str(root)))
    return tree


@pytest.mark.parametrize(
    "cut", [50, 60_000, 2_000_000, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (5_000, 400_000))]
)
def test_a_tree_comes_whole_over_a_line_that_is_cut(fleet: Fleet, data: Path, store: LocalStore, cut: int) -> None:
    tree = sent(fleet, data)
    with Relay(port_of(fleet)) as relay, closing(Urllib3Transport(HttpSettings())) as transport:
        relay.cuts = [cut, cut, cut]
        line = FleetClient(transport, relay.url, clock=CLOCK, token=TOKEN)
        record = receive_tree(CoordinatorSource(line), tree.digest(), store, stop=DownloadStop(), clock=CLOCK)
        assert relay.cut_count >= 1
        # What had come is not sent again; what was on its way when a line was cut may be.
        assert relay.came_bytes < 2 * tree.size_bytes
    assert record.tree == tree
    assert_nothing_is_torn(store)


@pytest.mark.parametrize("cut", [50, 200_000, 1_000_000])
def test_a_tree_goes_whole_over_a_line_that_is_cut(fleet: Fleet, data: Path, cut: int) -> None:
    tree = scan_tree(str(data))
    with Relay(port_of(fleet)) as relay, closing(Urllib3Transport(HttpSettings())) as transport:
        relay.asked_cuts = [cut, cut]
        line = FleetClient(transport, relay.url, clock=CLOCK, token=TOKEN)
        assert send_tree(line, tree, FolderFileSource(str(data))).tree == tree.digest()
        assert relay.cut_count >= 1
    assert fleet.client().want_tree(tree.digest()).is_here


@pytest.mark.parametrize(
    ("step", "count"),
    [
        ("write", SMALL // 2),
        ("sync", 1),
        ("publish", 1),
        *(pytest.param(step, 1, marks=pytest.mark.slow) for step in ("listing", "keep", "sidecar")),
    ],
    ids=str,
)
def test_a_receiver_that_is_killed_leaves_nothing_torn_and_the_next_goes_on(
    fleet: Fleet, data: Path, store: LocalStore, step: str, count: int
) -> None:
    tree = sent(fleet, data)
    words = [fleet.url, fleet.socket, tree.digest(), store.places.root, step, str(count)]
    killed = subprocess.run([sys.executable, str(CHILD), *words], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert_nothing_is_torn(store)
    assert held_tree(store, tree.digest()) is None
    outlooks: list[TreeFetchEstimate] = []
    client = fleet.client()
    origins = CoordinatorSource(client)
    record = receive_tree(origins, tree.digest(), store, stop=DownloadStop(), clock=CLOCK, on_outlook=outlooks.append)
    assert record.tree == tree
    if step == "publish":
        assert outlooks[0].missing_bytes == 0
    left = [name for name in os.listdir(store.places.incoming) if not name.endswith(".lock")]
    assert all(name.startswith(".stoker-tmp-") for name in left)


def test_whoever_is_told_to_stop_goes_on_later_from_there(fleet: Fleet, data: Path, store: LocalStore) -> None:
    tree = sent(fleet, data)
    client, stop = fleet.client(), DownloadStop()
    origins = CoordinatorSource(client)

    def until_half(_count: int) -> None:
        stop.ask(Cancelled("enough"))

    with pytest.raises(Cancelled, match="enough"):
        receive_tree(origins, tree.digest(), store, stop=stop, clock=CLOCK, heed=until_half)
    assert_nothing_is_torn(store)
    again = CoordinatorSource(fleet.client())
    assert receive_tree(again, tree.digest(), store, stop=DownloadStop(), clock=CLOCK).tree == tree


def test_wrong_bytes_of_the_coordinator_are_refused_and_not_kept(fleet: Fleet, data: Path, store: LocalStore) -> None:
    tree = sent(fleet, data)
    entry = next(entry for entry in tree.entries if entry.path == "large.bin")
    kept = LocalStore(os.path.join(fleet.keeping.folder, "store"), clock=CLOCK)
    blob = kept.places.blob(entry.sha256)
    info = os.stat(blob)
    os.chmod(blob, 0o600)
    with open(blob, "r+b") as file:
        file.write(b"rotten")
    os.utime(blob, ns=(info.st_atime_ns, info.st_mtime_ns))
    # As if the disk had changed it behind our back: nothing of the file tells.
    objects = fleet.keeping.objects
    assert isinstance(objects, LocalObjects)
    objects._store.memo.remember(entry.sha256, stamp_of(os.lstat(blob)), entry.sha256)
    client = fleet.client()
    origins = CoordinatorSource(client)
    with pytest.raises(HashMismatch):
        receive_tree(origins, tree.digest(), store, stop=DownloadStop(), clock=CLOCK)
    assert held_tree(store, tree.digest()) is None
    assert_nothing_is_torn(store)
    kept.close()


def test_a_full_disk_is_told_before_anything_comes_and_what_came_is_kept(
    fleet: Fleet, data: Path, tmp_path: Path
) -> None:
    tree = sent(fleet, data)
    client = fleet.client()
    origins = CoordinatorSource(client)
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        store = LocalStore(str(disk / "store"), clock=CLOCK)
        store.open()
        came: list[int] = []
        with pytest.raises(NoSpace):
            receive_tree(origins, tree.digest(), store, stop=DownloadStop(), clock=CLOCK, heed=came.append)
        assert came == []
        assert_nothing_is_torn(store)
        store.close()
