"""What workers ship, over real HTTP to a real coordinator: mirrored, uploaded, fetched back, pinned and pruned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.api.fleet_attempt import FleetResult, fetch_result
from stoker.core.capability import Capability
from stoker.core.clock import SystemClock
from stoker.core.digests import Tree
from stoker.core.errors import Conflict, Forbidden, NotFound, StaleLease
from stoker.core.frozen import changed
from stoker.engine.journal import read_status
from stoker.jobs.job_history import tell
from stoker.jobs.results import parts_of_job
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, Finish, Grant, Hello, Start
from stoker.protocol.transport import CoordinatorRequest
from stoker.protocol.view_messages import PruneRequest
from stoker.store.local_store import LocalStore
from stoker.store.results import lay_out, tree_of
from stoker.transfer.mirror import AttemptFolderSync
from stoker.transfer.trees.tree_upload import StoreFileSource, send_tree
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator
from tests.unit.jobs.conftest import Office

CLOCK = SystemClock()
SOON_S = 60.0


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def granted(fleet: Fleet) -> Grant:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    found = Capability(
        hostname="desk", os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=1 << 36, ram_available_bytes=1 << 36
    )
    hello = Hello(worker="desk", incarnation="incarnation-1", capability=found.to_dict(), capability_digest="d")
    client.hello(hello)
    claimed = client.claim(Claim(request_id="request-1", worker="desk", incarnation="incarnation-1"))
    (grant,) = claimed.grants
    client.write(grant.job, Start(attempt=grant.attempt, epoch=grant.epoch, generation=grant.generation))
    return grant


def test_a_job_s_folder_and_result_arrive_and_come_back_as_they_were(fleet: Fleet, tmp_path: Path) -> None:
    office = Office(tmp_path / "office")
    done = office.run("test/blobs")
    grant, client = granted(fleet), fleet.client()
    mirror = AttemptFolderSync(done.folder.path, grant.token(), client, clock=CLOCK)
    assert mirror.drain(CLOCK.monotonic_s() + SOON_S)
    assert mirror.troubles == ()
    listed = {file.path: file.size_bytes for file in client.files("train").files}
    here = {
        str(path.relative_to(done.folder.path)): path for path in Path(done.folder.path).rglob("*.*") if path.is_file()
    }
    assert listed == {path: file.stat().st_size for path, file in here.items()}
    assert client.read_file("train", "status.jsonl").data == here["status.jsonl"].read_bytes()

    parts = parts_of_job(office.lab.store, done.folder, tell(read_status(done.folder.status_path)))
    tree, source = tree_of(parts), StoreFileSource(office.lab.store, *(part.record for part in parts))
    token: dict[str, Any] = {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}
    said = Finish(**token, tree=tree.digest(), size_bytes=tree.size_bytes)
    with pytest.raises(Conflict, match="is not stored"):
        client.write(grant.job, said)
    assert send_tree(client, tree, source).sent_files > 0
    assert send_tree(client, tree, source).sent_files == 0
    with pytest.raises(Conflict, match="is stored with"):
        client.write(grant.job, said.model_copy(update={"size_bytes": 1}))
    assert client.write(grant.job, said).state == "completed"

    shows_files(client, tree, here)
    wanted = FleetResult.of("train", grant.job, client.job("train").bundle)
    store = LocalStore(str(tmp_path / "laptop"), clock=CLOCK)
    store.open()
    part = fetch_result(client, wanted, store, clock=CLOCK)
    assert lay_out(store, [part], str(tmp_path / "out")).files
    store.close()
    assert _prune(fleet, client.pin("train").changed) == 0
    client.unpin("train")
    assert _prune(fleet, ()) == 1
    with pytest.raises(NotFound, match="was pruned"):
        FleetResult.of("train", grant.job, client.job("train").bundle)
    office.lab.store.close()


def shows_files(client: FleetClient, tree: Tree, here: dict[str, Path]) -> None:
    """A browser can list the files, and save each as a whole."""
    shown = client.result_files("train")
    assert {file.path: file.sha256 for file in shown.files} == {
        entry.path: entry.sha256 for entry in tree.entries if entry.sha256
    }
    assert (shown.tree, shown.count, shown.size_bytes) == (tree.digest(), len(shown.files), tree.size_bytes)
    whole = CoordinatorRequest(path="/v1/jobs/train/files/status.jsonl?limit=0")
    named = CoordinatorRequest(path=f"/v1/objects/{shown.files[0].sha256}?name=a/%22b%0D.txt")
    with closing(client.transport.open(whole)) as reply:
        assert reply.headers.get("content-length") == str(here["status.jsonl"].stat().st_size)
    with closing(client.transport.open(named)) as reply:
        assert reply.headers.get("content-disposition") == "attachment; filename*=UTF-8''%22b%0D.txt"


def _prune(fleet: Fleet, pinned: tuple[str, ...]) -> int:
    client = fleet.client()
    asked = PruneRequest(max_bytes=0)
    outlook = client.prune(asked)
    assert not outlook.is_done
    assert outlook.kept == ({"pinned": 1} if pinned else {})
    done = client.prune(asked.model_copy(update={"is_wanted": True}))
    assert done.is_done
    assert (done.result_count, done.freed_bytes > 0) == (outlook.result_count, bool(outlook.result_count))
    return done.result_count


def test_a_stale_token_s_bytes_are_refused_and_end_its_mirror(fleet: Fleet, tmp_path: Path) -> None:
    grant = granted(fleet)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.log").write_bytes(b"x")
    stale = changed(grant.token(), epoch=grant.epoch + 1)
    mirror = AttemptFolderSync(str(tmp_path / "run"), stale, fleet.client(), clock=CLOCK)
    assert not mirror.drain(CLOCK.monotonic_s() + SOON_S)
    assert isinstance(mirror.ended_by, StaleLease)
    assert fleet.client().files("train").files == ()


def test_only_an_operator_prunes(fleet: Fleet) -> None:
    with pytest.raises(Forbidden):
        fleet.client(token="").prune(PruneRequest())
