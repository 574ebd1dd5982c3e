from __future__ import annotations

import os
from pathlib import Path

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.frozen import changed
from stoker.engine.journal import read_status
from stoker.engine.key_leases import KeyLeases
from stoker.engine.scratch import open_scratch
from stoker.host.identity import mine
from stoker.jobs.execution import clear_stale_staging
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import tell
from stoker.jobs.upkeep import FORGOTTEN_S, clear_rubbish, find_rubbish, why_kept
from stoker.store.objects.local import LocalObjects
from stoker.store.refs import pin
from stoker.store.verify import EVERYTHING, check_store
from tests.unit.host.real_processes import code_of, fork
from tests.unit.jobs.conftest import Office


def leases(office: Office) -> KeyLeases:
    return KeyLeases(office.lab.store.places.leases, clock=office.lab.clock)


def test_what_dead_processes_left_is_found_and_cleared(office: Office) -> None:
    store, key = office.lab.store, Digest("ab" * 32)

    def die_at_work() -> None:
        KeyLeases(store.places.leases, clock=office.lab.clock).take(key)
        store.new_staging(f"test-stage.{key[:12]}")

    assert code_of(fork(die_at_work)) == 0
    mine_alone = store.new_staging("test-stage.mine")
    rubbish = find_rubbish(store, LocalObjects(store, clock=office.lab.clock), leases(office), office.lab.clock)
    assert (len(rubbish.staging), rubbish.leases) == (1, (key,))
    clear_rubbish(rubbish, leases(office))
    assert os.listdir(store.places.staging) == [os.path.basename(mine_alone)]
    assert (
        find_rubbish(store, LocalObjects(store, clock=office.lab.clock), leases(office), office.lab.clock).staging == ()
    )


def test_checkpoints_that_nobody_came_back_to_go_after_a_while(office: Office) -> None:
    store, clock, root = office.lab.store, office.lab.clock, office.folder / "scratch"
    mine_still = open_scratch(str(root / ("ab" * 32)), run_id="now", me=mine(), clock=clock)
    old = open_scratch(str(root / ("cd" * 32)), run_id="then", me=changed(mine(), start_ticks=1), clock=clock)
    Path(old.path, "model.pt").write_bytes(b"weights")
    later = FakeClock(start_s=clock.wall_s() + FORGOTTEN_S + 1)
    assert find_rubbish(store, LocalObjects(store, clock=clock), leases(office), clock, scratch=str(root)).scratch == ()
    rubbish = find_rubbish(store, LocalObjects(store, clock=later), leases(office), later, scratch=str(root))
    assert rubbish.scratch == (old.path,)
    clear_rubbish(rubbish, leases(office))
    assert [path.name for path in root.iterdir()] == [os.path.basename(mine_still.path)]


def test_staging_of_somebody_who_still_holds_the_lease_is_left_alone(office: Office) -> None:
    """A process in another container can't be seen, but its lease is live."""
    store, key = office.lab.store, Digest("cd" * 32)
    Path(store.places.staging, f".999999.1.test-stage.{key[:12]}").mkdir()
    book = leases(office)
    book.take(key)
    clear_stale_staging(store, book)
    assert len(os.listdir(store.places.staging)) == 1
    book.give_back(key)
    clear_stale_staging(store, book)
    assert os.listdir(store.places.staging) == []


def test_what_is_pinned_worked_on_or_in_use_is_kept_with_its_reason(office: Office) -> None:
    done = office.run("test/blobs")
    keys = {name: Digest(node.key) for name, node in tell(read_status(done.folder.status_path)).nodes.items()}
    book = leases(office)
    assert why_kept(office.lab.store, book, office.runs)(keys["blob"]) == ""
    pin(office.lab.store.places, "mine", (keys["blob"],))
    assert why_kept(office.lab.store, book, office.runs)(keys["blob"]) == "pinned as mine"
    book.take(keys["blob-sum"])
    assert why_kept(office.lab.store, book, office.runs)(keys["blob-sum"]) == "being worked on"
    book.give_back_all()
    os.unlink(f"{done.folder.path}/end.json")
    assert JobFolder(done.folder.path).owner() == mine()
    assert why_kept(office.lab.store, book, office.runs)(keys["blob-sum"]) == "used by a running job"


def test_every_record_is_checked_and_damage_named(office: Office) -> None:
    done = office.run("test/blobs")
    everything = check_store(office.lab.store, afresh=EVERYTHING, heed=lambda _: None, clock=office.lab.clock)
    assert [one.damage for one in everything] == ["", ""]
    end = done.folder.ended()
    assert end is not None
    (path,) = office.lab.blob_paths(Digest(end.keys["blob"]))
    path.chmod(0o644)
    path.write_bytes(b"junk")
    checked = check_store(office.lab.store, afresh=None, heed=lambda _: None, clock=office.lab.clock)
    damages = {one.stage: one.damage for one in checked}
    assert damages == {"test/blob": "lost: value.json", "test/blob-sum": ""}


def test_to_check_is_not_to_use(office: Office) -> None:
    done = office.run("test/sum", values="1")
    end = done.folder.ended()
    assert end is not None
    path = office.lab.record_path(Digest(end.keys["add"]))
    os.utime(path, (1000.0, 1000.0))
    list(check_store(office.lab.store, afresh=None, heed=lambda _: None, clock=office.lab.clock))
    assert os.stat(path).st_mtime == 1000.0


def test_young_blobs_without_a_name_are_left_for_their_record(office: Office) -> None:
    orphan = Path(office.lab.store.places.blobs, "0", "0" * 64)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x" * 10)
    assert (
        find_rubbish(
            office.lab.store, LocalObjects(office.lab.store, clock=office.lab.clock), leases(office), office.lab.clock
        ).blobs
        == 0
    )
    later = FakeClock(os.stat(orphan).st_ctime + 7200)
    found = find_rubbish(office.lab.store, LocalObjects(office.lab.store, clock=later), leases(office), later)
    assert (found.blobs, found.blob_bytes) == (1, 10)
