"""Trees in a real S3 store (SeaweedFS), sent and fetched by passes: wrong bytes, cuts, busy stores, expired passes."""

from __future__ import annotations

import io
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from stoker.coordinator.storage.object_place import (
    PLACE_NAME,
    ObjectPlace,
    adopt_objects,
    choose_place,
    move_objects,
    read_place,
)
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest, Tree, digest_bytes
from stoker.core.errors import (
    AuthRefused,
    BadInput,
    Cancelled,
    Conflict,
    CorruptBytes,
    HashMismatch,
    NotFound,
    StokerError,
)
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.tree_messages import PassView
from stoker.store.local_store import LocalStore
from stoker.store.objects import s3_bucket
from stoker.store.objects.s3 import S3Objects
from stoker.store.objects.s3_passes import read_site
from stoker.store.prune import resolve
from stoker.store.trees import scan_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees import direct
from stoker.transfer.trees.direct import put
from stoker.transfer.trees.tree_download import receive_tree
from stoker.transfer.trees.tree_sources import CoordinatorSource
from stoker.transfer.trees.tree_upload import FileSource, FolderFileSource, StoreFileSource, send_tree
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.s3_proxy import FAULTS, S3Proxy
from tests.servers.seaweed import SeaweedServer
from tests.unit.store.real_stores import put_in

CLOCK = SystemClock()
PART = 1 << 20
LARGE = 6 * PART + 17
LISTING = 4096


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[S3Proxy]:
    with S3Proxy(seaweed.endpoint) as proxy:
        yield proxy


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path, seaweed: SeaweedServer, proxy: S3Proxy) -> Iterator[Fleet]:
    environment = seaweed.environment(endpoint=proxy.endpoint)
    choose_place(str(tmp_path / "fleet"), seaweed.new_url(), environment, clock=CLOCK)
    assert read_place(str(tmp_path / "fleet")).is_direct
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path, environment=environment) as fleet:
        assert fleet.keeping.direct is not None
        fleet.keeping.direct.part_bytes = PART
        proxy.put_bytes = 0
        yield fleet


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(5):
        (root / f"{number}.txt").write_bytes(os.urandom(3000))
    (root / "large.bin").write_bytes(os.urandom(LARGE))
    (root / "middle.bin").write_bytes(os.urandom(PART - 5))
    (root / "one_part.bin").write_bytes(os.urandom(PART + 1))
    return root


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"), clock=CLOCK)
    store.open()
    yield store
    store.close()


@pytest.fixture
def transport() -> Iterator[Urllib3Transport]:
    with closing(Urllib3Transport(HttpSettings())) as transport:
        yield transport


def send(fleet: Fleet, root: Path) -> Tree:
    tree = scan_tree(str(root))
    send_tree(fleet.client(), tree, FolderFileSource(str(root)))
    return tree


def fetch(fleet: Fleet, tree: Tree, store: LocalStore) -> None:
    source = CoordinatorSource(fleet.client())
    assert receive_tree(source, tree.digest(), store, stop=DownloadStop(), clock=CLOCK).tree == tree
    for entry in tree.entries:
        assert digest_bytes(Path(store.blob(entry)).read_bytes()) == entry.sha256


def offered(fleet: Fleet, data: bytes) -> PassView:
    return fleet.client().pass_to_send(digest_bytes(data), len(data)).passes[0]


def test_a_tree_goes_to_the_store_and_comes_back(fleet, data, store, proxy):
    tree = send(fleet, data)
    # Small files travel in packs, through the coordinator; nothing is on its disk.
    assert LARGE + PART + 1 <= proxy.put_bytes < LARGE + PART + LISTING
    assert not list(Path(fleet.keeping.folder, "store", "blobs").rglob("?" * 64))
    fetch(fleet, tree, store)
    # A second tree with the same files sends none of them.
    proxy.put_bytes = 0
    (data / "new.txt").write_bytes(b"new")
    send(fleet, data)
    assert proxy.put_bytes < LISTING


def test_the_store_refuses_other_bytes_and_a_changed_pass(fleet, transport):
    right = os.urandom(PART)
    by = offered(fleet, right)
    with pytest.raises(HashMismatch):
        put(transport, by, right[::-1])
    with pytest.raises(AuthRefused):
        put(transport, by, right[:-1])
    for changed in ({"if-none-match": "x"}, {"x-amz-checksum-sha256": "A" * 43 + "="}):
        other = PassView(digest=by.digest, size_bytes=PART, url=by.url, headers={**by.headers, **changed})
        with pytest.raises(AuthRefused):
            put(transport, other, right)
    elsewhere = PassView(digest="", size_bytes=PART, url=by.url.replace(by.digest, "0" * 64), headers=by.headers)
    with pytest.raises(AuthRefused):
        put(transport, elsewhere, right)
    assert fleet.client().name_parts(by.digest, [(by.digest, PART)]) == (by.digest,)
    put(transport, by, right)
    # Already there: not an error, and not replaced.
    put(transport, by, right)
    assert fleet.client().name_parts(by.digest, [(by.digest, PART)]) == ()
    assert fleet.keeping.has_archive(by.digest) == PART


def test_an_expired_pass_is_refused(fleet, transport):
    data = os.urandom(100)
    digest = digest_bytes(data)
    made = fleet.keeping.direct.site.pass_to_put(f"objects/{digest}", digest, 100, now_s=CLOCK.wall_s() - 3600)
    by = PassView(digest=digest, size_bytes=100, url=made.url, headers=dict(made.headers))
    with pytest.raises(AuthRefused):
        put(transport, by, data)


def test_a_second_try_sends_only_what_is_missing(fleet, data, proxy, store):
    tree = scan_tree(str(data))
    stop = threading.Event()

    def heed(_count: int) -> None:
        if proxy.put_bytes >= LARGE // 2:
            stop.set()

    with pytest.raises(Cancelled):
        send_tree(fleet.client(), tree, FolderFileSource(str(data)), stop=stop, heed=heed)
    before = proxy.put_bytes
    send(fleet, data)
    assert LARGE + PART + 1 <= proxy.put_bytes < LARGE + PART + LISTING
    assert proxy.put_bytes - before <= (LARGE + PART + 1) // 2 + direct.LANES * PART
    fetch(fleet, tree, store)


@pytest.mark.parametrize("is_stored", [False, True], ids=["folder", "store"])
def test_a_file_that_changes_while_it_is_sent_is_not_named(fleet, data, store, is_stored):
    tree, path = scan_tree(str(data)), data / "large.bin"
    (large,) = [entry for entry in tree.entries if entry.path == "large.bin"]
    source: FileSource = FolderFileSource(str(data))
    if is_stored:
        put_in(store, data, "data")
        (record,) = resolve(store, "data")
        source, path = StoreFileSource(store, record), Path(store.blob(large))
        path.chmod(0o600)

    def heed(_count: int) -> None:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")

    with pytest.raises(CorruptBytes, match=r"large\.bin"):
        send_tree(fleet.client(), Tree((large,)), source, heed=heed)
    assert fleet.client().missing([large.sha256], [large.size_bytes]) == (large.sha256,)


def test_only_the_parts_of_a_file_of_the_store_are_hashed(fleet, data, store, monkeypatch):
    put_in(store, data / "large.bin", "data")
    (record,) = resolve(store, "data")
    monkeypatch.setattr(direct, "sha256", lambda: pytest.fail("hashed whole"))
    send_tree(fleet.client(), record.tree, StoreFileSource(store, record))
    assert fleet.client().missing([record.tree.entries[0].sha256], [LARGE]) == ()


class Spoiler:
    """Breaks some of the requests that come by passes, at most `most` of them."""

    def __init__(self, fault: str, seed: int, most: int) -> None:
        self.fault = fault
        self.count = 0
        self._random = random.Random(seed)
        self._most = most

    def __call__(self, method: str, path: str) -> str:
        # The coordinator signs by a header; its own requests are judged by the same function.
        if method not in {"PUT", "GET"} or "X-Amz-Signature" not in path:
            return "pass"
        if self.count >= self._most or self._random.random() < 0.5:
            return "pass"
        self.count += 1
        return self.fault


def spoil(fleet: Fleet, folder: Path, proxy: S3Proxy, fault: str, seed: int) -> int:
    """Send and fetch a tree while requests are broken: a try ends well or is refused. Return how many were broken."""
    root = folder / "data"
    root.mkdir(parents=True)
    chosen = random.Random(seed)
    (root / "several.bin").write_bytes(chosen.randbytes(2 * PART + chosen.randrange(1, PART)))
    (root / "single.bin").write_bytes(chosen.randbytes(PART + chosen.randrange(1, PART // 4)))
    tree = scan_tree(str(root))
    spoilers = []
    transfers = (lambda: send(fleet, root), lambda: receive(fleet, tree, folder))
    for transfer in transfers:
        proxy.fault = spoiler = Spoiler(fault, seed, most=3)
        spoilers.append(spoiler)
        with suppress(StokerError):
            transfer()
    # Nothing that was refused or stored stands in the way of another try.
    proxy.fault = Spoiler(fault, seed, most=0)
    for transfer in transfers:
        transfer()
    # Also what is kept there has its bytes.
    for entry in tree.entries:
        with fleet.keeping.objects.open(entry.sha256) as stream:
            assert digest_bytes(stream.read()) == entry.sha256
    return sum(spoiler.count for spoiler in spoilers)


def receive(fleet: Fleet, tree: Tree, folder: Path) -> None:
    with closing(LocalStore(str(folder / "store"), clock=CLOCK)) as store:
        store.open()
        fetch(fleet, tree, store)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, proxy: S3Proxy) -> None:
    """Transfers wait less, and parts are larger than what goes in packs."""
    assert fleet.keeping.direct is not None
    fleet.keeping.direct.part_bytes = PART + PART // 4
    monkeypatch.setattr(direct, "_STALL_S", 0.3)
    monkeypatch.setattr("stoker.transfer.trees.tree_sources.FIRST_S", 0.01)
    proxy.stall_s = 0.4


@pytest.mark.usefixtures("hasty")
def test_no_fault_of_a_store_gives_wrong_bytes(fleet, proxy, tmp_path):
    assert all(spoil(fleet, tmp_path / fault, proxy, fault, seed=1) for fault in FAULTS)


def test_a_damaged_part_is_fetched_again_alone(fleet, data, store, proxy):
    tree = send(fleet, data)
    gets: list[str] = []

    def damage_the_third(method: str, path: str) -> str:
        if method == "GET" and "X-Amz-Signature" in path:
            gets.append(path.partition("?")[0])
        return "flip" if len(gets) == 3 else "pass"

    proxy.fault = damage_the_third
    entry = next(entry for entry in tree.entries if entry.path == "large.bin")
    client = fleet.client()
    with closing(direct.direct_transport(client)) as transport:
        fetcher = direct.DirectFetcher(
            client, transport, entry.sha256, stop=DownloadStop(), clock=CLOCK, heed=lambda _: None
        )
        fetcher.run(client.passes_to_fetch(entry.sha256), str(data.parent / "file"))
    assert digest_bytes((data.parent / "file").read_bytes()) == entry.sha256
    assert sorted(gets) == sorted([*set(gets), gets[2]])


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_no_fault_of_five_hundred_gives_wrong_bytes(fleet, proxy, tmp_path):
    count = seed = 0
    while count < 500:
        fault = FAULTS[seed % len(FAULTS)]
        count += spoil(fleet, tmp_path / str(seed), proxy, fault, seed)
        shutil.rmtree(tmp_path / str(seed))
        seed += 1
    assert seed >= len(FAULTS)


def test_the_writer_of_the_queue_does_not_wait_for_the_store(fleet, data, proxy):
    tree = send(fleet, data)
    asked = len(proxy.requests)
    for entry in tree.entries:
        assert fleet.keeping.has_archive(entry.sha256) == entry.size_bytes
    assert fleet.keeping.has_archive("0" * 64) is None
    assert len(proxy.requests) == asked


def test_parts_that_are_not_the_file_are_found_by_a_reader_and_removed(fleet, data, store, transport):
    client = fleet.client()
    parts = [os.urandom(PART), os.urandom(PART)]
    for part in parts:
        put(transport, offered(fleet, part), part)
    lie = scan_tree(str(data))
    entry = next(entry for entry in lie.entries if entry.path == "one_part.bin")
    assert client.name_parts(entry.sha256, [(digest_bytes(part), PART) for part in parts]) == ()
    with pytest.raises(HashMismatch):
        direct.DirectFetcher(
            client, transport, entry.sha256, stop=DownloadStop(), clock=CLOCK, heed=lambda _: None
        ).run(client.passes_to_fetch(entry.sha256), str(data.parent / "file"))
    assert fleet.keeping.has_archive(entry.sha256) is None
    fetch(fleet, send(fleet, data), store)


def test_parts_are_checked_before_they_are_named(fleet):
    client, digest = fleet.client(), "1" * 64
    with pytest.raises(BadInput):
        client.name_parts(digest, [("2" * 64, 5)])
    with pytest.raises(BadInput):
        client.name_parts(digest, [("2" * 64, PART + 1), ("3" * 64, 1)])
    assert client.name_parts(digest, [("2" * 64, 5), ("3" * 64, 1)]) == ("2" * 64, "3" * 64)
    with pytest.raises(NotFound):
        client.passes_to_fetch(digest)


def test_objects_move_to_a_bucket_and_back(tmp_path, seaweed):
    folder, environment, url = str(tmp_path / "fleet"), seaweed.environment(), seaweed.new_url()
    files = {digest_bytes(data): data for data in (b"", b"small", os.urandom(3 * PART))}
    with closing(CoordinatorStorage(folder, CLOCK)) as keeping:
        for digest, data in files.items():
            keeping.objects.put_all([(digest, data)])
    with pytest.raises(Conflict) as refused:
        choose_place(folder, url, environment, clock=CLOCK)
    assert f"stoker admin objects move --to {url}" in refused.value.hint
    moved = move_objects(folder, url, environment, clock=CLOCK)
    assert (moved.objects, moved.known) == (3, 0)
    with closing(CoordinatorStorage(folder, CLOCK, environment=environment)) as keeping:
        assert keeping.place.url == url
        for digest, data in files.items():
            with keeping.objects.open(Digest(digest)) as stream:
                assert stream.read() == data
        keeping.objects.put_all([(digest_bytes(b"later"), b"later")])
    with pytest.raises(BadInput, match="no key"):
        CoordinatorStorage(folder, CLOCK, environment={"HOME": str(tmp_path)})
    back = move_objects(folder, "", environment, clock=CLOCK)
    assert (back.objects, back.known) == (4, 3)
    with closing(CoordinatorStorage(folder, CLOCK)) as keeping:
        assert keeping.has_archive(digest_bytes(b"later")) == 5
    # Elsewhere nothing is there yet.
    assert move_objects(folder, seaweed.new_url(), environment, clock=CLOCK).known == 0
    with closing(CoordinatorStorage(folder, CLOCK, environment=environment)) as keeping:
        assert keeping.objects.open(digest_bytes(b"later")).read() == b"later"


def test_a_lost_index_is_made_again_from_the_bucket(tmp_path, seaweed, monkeypatch):
    url, environment = seaweed.new_url(), seaweed.environment()
    files = {digest_bytes(data): data for data in (b"", b"small", os.urandom(2 * PART))}
    choose_place(str(tmp_path / "one"), url, environment, clock=CLOCK)
    with closing(CoordinatorStorage(str(tmp_path / "one"), CLOCK, environment=environment)) as keeping:
        keeping.objects.put_all(list(files.items())[:2])
        for digest, data in list(files.items())[2:]:
            keeping.objects.put(digest, io.BytesIO(data))
    rebuild, made, signs = S3Objects.rebuild, list[int](), list[int]()

    def counted(objects: S3Objects) -> int:
        made.append(rebuild(objects))
        return made[-1]

    monkeypatch.setattr(S3Objects, "rebuild", counted)
    assert adopt_objects(str(tmp_path / "two"), url, environment, clock=CLOCK) == 3
    assert made == [3], "listed once"
    for name in os.listdir(tmp_path / "one"):
        if name.startswith("objects-"):
            os.unlink(tmp_path / "one" / name)
    with closing(
        CoordinatorStorage(str(tmp_path / "one"), CLOCK, environment=environment, progress=lambda: signs.append(1))
    ):
        assert (made, len(signs) >= 3) == ([3, 3], True), "a supervisor hears of each page"
    with closing(CoordinatorStorage(str(tmp_path / "two"), CLOCK, environment=environment)) as keeping:
        for digest, data in files.items():
            with keeping.objects.open(digest) as stream:
                assert stream.read() == data


@pytest.mark.parametrize("broken", ["objects", "packs", "files"])
def test_an_index_that_was_not_made_to_its_end_is_made_again_and_nothing_is_deleted(
    tmp_path, seaweed, proxy, monkeypatch, broken
):
    monkeypatch.setattr(s3_bucket, "_TRIES", 1)
    url, environment, folder = seaweed.new_url(), seaweed.environment(), str(tmp_path / "one")
    behind = {**environment, "AWS_ENDPOINT_URL": proxy.endpoint}
    files = {digest_bytes(data): data for data in (b"small", os.urandom(2 * PART))}
    choose_place(folder, url, behind, clock=CLOCK)
    with closing(CoordinatorStorage(folder, CLOCK, environment=behind)) as keeping:
        for digest, data in files.items():
            keeping.objects.put(digest, io.BytesIO(data))
        keeping.objects.put_all([(digest_bytes(b"packed"), b"packed")])
    (index,) = [name for name in os.listdir(folder) if name.startswith("objects-") and name.endswith(".db")]
    os.unlink(os.path.join(folder, index))
    proxy.fault = lambda method, path: "503" if method == "GET" and f"{broken}%2F" in path else "pass"
    with pytest.raises(StokerError):
        CoordinatorStorage(folder, CLOCK, environment=behind)
    proxy.fault = lambda _method, _path: "pass"
    with closing(CoordinatorStorage(folder, CLOCK, environment=behind)) as keeping:
        assert isinstance(keeping.objects, S3Objects)
        assert keeping.objects.sweep_bucket(grace_s=-3600.0) == 0
        for digest, data in {**files, digest_bytes(b"packed"): b"packed"}.items():
            with keeping.objects.open(digest) as stream:
                assert stream.read() == data


def test_a_listing_that_breaks_off_goes_on_where_it_was(seaweed, proxy, monkeypatch):
    monkeypatch.setattr(s3_bucket, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(s3_bucket, "_PAGE", 50)
    environment = {**seaweed.environment(), "AWS_ENDPOINT_URL": proxy.endpoint}
    bucket = s3_bucket.S3Bucket(read_site(seaweed.new_url(), environment), clock=CLOCK)
    names = [f"objects/{number:04}" for number in range(120)]
    for name in names:
        bucket.put(name, b"x")
    listings = 0

    def every_other(method: str, path: str) -> str:
        nonlocal listings
        listings += "list-type" in path
        return "503" if "list-type" in path and listings % 2 else "pass"

    proxy.fault = every_other
    assert [name for name, _, _ in bucket.list("objects/")] == names
    assert listings >= 6


def test_a_prefix_belongs_to_one_coordinator(tmp_path, seaweed, monkeypatch):
    url, environment = seaweed.new_url(), seaweed.environment()
    choose_place(str(tmp_path / "one"), url, environment, clock=CLOCK)
    choose_place(str(tmp_path / "one"), url, environment, clock=CLOCK)
    monkeypatch.setattr(S3Objects, "rebuild", lambda _: pytest.fail("another one's objects are listed"))
    with pytest.raises(Conflict, match="another coordinator"):
        choose_place(str(tmp_path / "two"), url, environment, clock=CLOCK)


def test_objects_of_a_coordinator_that_began_in_a_bucket_move_to_disk_and_to_that_bucket_again(tmp_path, seaweed):
    url, environment, folder = seaweed.new_url(), seaweed.environment(), str(tmp_path / "one")
    choose_place(folder, url, environment, clock=CLOCK)
    with closing(CoordinatorStorage(folder, CLOCK, environment=environment)) as keeping:
        keeping.objects.put_all([(digest_bytes(b"small"), b"small")])
    owner = read_place(folder).owner
    move_objects(folder, "", environment, clock=CLOCK)
    assert read_place(folder) == ObjectPlace(owner=owner)
    assert move_objects(folder, url, environment, clock=CLOCK).known == 1
    assert read_place(folder).owner == owner


def test_a_first_start_that_was_interrupted_keeps_its_claim_of_the_prefix(tmp_path, seaweed):
    url, environment, folder = seaweed.new_url(), seaweed.environment(), tmp_path / "one"
    choose_place(str(folder), url, environment, clock=CLOCK)
    (folder / PLACE_NAME).unlink()
    choose_place(str(folder), url, environment, clock=CLOCK)


def test_a_wrong_key_is_refused_with_a_hint(tmp_path, seaweed):
    environment = {**seaweed.environment(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(AuthRefused) as refused:
        choose_place(str(tmp_path / "one"), seaweed.new_url(), environment, clock=CLOCK)
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint
    assert "wrong" not in str(refused.value)
