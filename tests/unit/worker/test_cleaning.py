from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.api.cleanup import (
    ABANDONED_S,
    NO_MORE,
    QUARANTINE_S,
    Area,
    CleanupOptions,
    Findings,
    clear,
    home_places,
    look_around,
    unfinished_bytes,
)
from stoker.core.clock import FakeClock
from stoker.core.errors import CorruptBytes, NoPermission
from stoker.core.frozen import changed
from stoker.engine.key_leases import KeyLeases
from stoker.engine.scratch import open_scratch
from stoker.host.durable import remove_tree
from stoker.host.folders import HomeFolder
from stoker.host.identity import mine
from stoker.host.resources import folder_bytes
from stoker.jobs import upkeep
from stoker.jobs.upkeep import FORGOTTEN_S, UPLOAD_GRACE_S, CleanupResult, find_rubbish, why_kept, why_let_go
from stoker.store.environment_cache import EnvironmentCache, EnvironmentReady, offer
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.places import set_aside
from stoker.store.prune import candidates, decide_prune
from stoker.store.refs import pin, remove_ref
from stoker.transfer.trees.holdings import INCOMING_GRACE_S
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import BIG, commit, found, key_of, make_store, put_contents, put_in


class Home:
    """Everything that Stoker fills, in one folder, looked at from some time on."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.store: LocalStore = make_store(top / "store")
        self.folders = AppSettings(home=str(top), folder=str(top), environment={})
        self.models = str(top / "hub")

    def write(self, path: str, size_bytes: int, *, age_s: float = 0.0) -> Path:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size_bytes)
        os.utime(file, (time.time() - age_s, time.time() - age_s))
        return file

    def shelf(self, clock: FakeClock) -> EnvironmentCache:
        return EnvironmentCache(self.folders.envs, clock=clock)

    def objects(self, clock: FakeClock) -> LocalObjects:
        return LocalObjects(self.store, clock=clock)

    def look(
        self, *, ahead_s: float = 10.0, max_bytes: int | None = None, more: CleanupOptions = NO_MORE
    ) -> tuple[dict[str, Area], Findings, FakeClock]:
        clock = FakeClock(start_s=time.time() + ahead_s)
        leases = KeyLeases(self.store.places.leases, clock=clock)
        kept = why_kept(self.store, leases, self.folders.runs)
        records = tuple(candidates(self.store, kept=kept, label=lambda _: "", let_go=why_let_go(self.store)))
        findings = Findings(
            candidates=records,
            decision=decide_prune(records, now_s=clock.wall_s(), max_bytes=max_bytes, older_than_s=None),
            rubbish=find_rubbish(self.store, self.objects(clock), leases, clock, scratch=self.folders.scratch),
            environments=offer(self.shelf(clock), now_s=clock.wall_s(), max_bytes=max_bytes, older_than_s=None),
        )
        areas = look_around(self.store, self.folders, self.models, findings, now_s=clock.wall_s(), more=more)
        return {area.name: area for area in areas}, findings, clock

    def clean(self, **options: object) -> tuple[dict[str, Area], CleanupResult]:
        looked = self.look(**options)  # type: ignore[arg-type]
        return looked[0], self.clear(*looked)

    def clear(self, areas: dict[str, Area], findings: Findings, clock: FakeClock) -> CleanupResult:
        leases = KeyLeases(self.store.places.leases, clock=clock)
        return clear(
            self.store,
            self.objects(clock),
            areas.values(),
            findings,
            leases=leases,
            environments=self.shelf(clock),
            clock=clock,
        )


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    made.store.close()


def test_every_place_is_listed_with_its_size_even_if_nothing_is_there(home):
    areas, _, _ = home.look()
    in_home = home_places(home.store.places, home.folders)
    assert list(areas) == [
        "results",
        "kept results",
        *list(in_home)[1:],
        "unfinished downloads",
        "models",
        "plain results",
    ]
    assert sum(area.removable_bytes for area in areas.values()) == 0


def test_no_folder_of_a_home_or_a_store_is_left_out(home):
    listed = [path for paths in home_places(home.store.places, home.folders).values() for path in paths]
    of_store = [path for name, path in vars(home.store.places).items() if name != "root"]
    of_home = [folder.below(home.folders.home) for folder in HomeFolder if folder is not HomeFolder.STORE]
    assert sorted(listed) == sorted([*of_store, *of_home])
    for number, path in enumerate(listed):
        home.write(os.path.relpath(os.path.join(path, "file"), home.top), 10 ** (number % 4))
    areas, _, _ = home.look()
    total_bytes = sum(area.size_bytes for name, area in areas.items() if name not in ("models", "plain results"))
    assert total_bytes == sum(folder_bytes(home.top / folder) for folder in HomeFolder)


def test_workspaces_of_ended_attempts_go_after_thirty_days_and_data_stays(home):
    ended, running, young = "20261001-000000-aaaa", "20261001-000000-bbbb", "20261101-000000-cccc"
    for run in (ended, running, young):
        home.write(f"workspaces/{run}/train.py", 1000)
        if run != running:
            home.write(f"runs/{run}/end.json", 10)
    home.write(f"runs/{running}/owner.json", 0).write_text(json.dumps(mine().to_dict()))
    for run in (ended, running):
        os.utime(home.top / "workspaces" / run, (time.time() - FORGOTTEN_S - 100,) * 2)
    blob = home.write("store/blobs/a/blob", 500)
    (home.top / "workspaces/.data/tree").mkdir(parents=True)
    os.link(blob, home.top / "workspaces/.data/tree/data")
    areas, cleared = home.clean()
    area = areas["workspaces"]
    assert (area.size_bytes, area.removable_bytes, cleared.freed_bytes) == (3000, 1000, 1000)
    assert area.goes == "1 of an attempt that ended 30 days ago"
    assert sorted(os.listdir(home.folders.workspaces)) == [".data", running, young]


def test_incoming_files_go_after_a_week_and_what_a_coordinator_stores_is_only_listed(home):
    idle = home.write("store/incoming/aa.part", 100, age_s=INCOMING_GRACE_S + 100)
    growing = home.write("store/incoming/bb.part", 200)
    stored = home.write("fleet/queue.db", 400, age_s=1e8)
    areas, cleared = home.clean()
    assert (areas["incoming"].size_bytes, areas["incoming"].removable_bytes, cleared.freed_bytes) == (300, 100, 100)
    assert (areas["fleet"].size_bytes, areas["fleet"].removable_bytes) == (400, 0)
    assert [path.exists() for path in (idle, growing, stored)] == [False, True, True]


def test_looking_removes_nothing(home):
    home.write("state/code.json", 10)
    home.write("hub/models--a--b/blobs/e.incomplete", 10, age_s=ABANDONED_S + 100)
    home.store.new_staging("x")
    before = sorted(home.top.rglob("*"))
    home.look(max_bytes=0)
    assert sorted(home.top.rglob("*")) == before


def test_results_that_are_kept_are_told_from_those_that_may_go(home):
    for name in ("a", "b", "c"):
        commit(home.store, name, {"x": name.encode() * BIG})
    pin(home.store.places, "mine", (key_of("a"),))
    (home.top / "data").write_bytes(b"d" * BIG)
    put_in(home.store, home.top / "data", "data")
    areas, cleared = home.clean(max_bytes=0)
    assert areas["results"].removable_bytes == 2 * BIG
    assert areas["results"].goes == "2 results"
    assert areas["kept results"].size_bytes == 2 * BIG
    assert areas["kept results"].stays == "2 that are pinned, put under a name or in use"
    assert cleared == CleanupResult(freed_bytes=2 * BIG)
    assert found(home.store, "a").has_bytes
    assert found(home.store, "b").record.is_tombstone
    assert put_contents(home.store, "data") == {"data": b"d" * BIG}


def test_what_lost_its_name_goes_without_any_limit_once_it_is_an_hour_old(home):
    (home.top / "data").write_bytes(b"d" * BIG)
    put_in(home.store, home.top / "data", "data")
    commit(home.store, "a", {"x": b"a" * BIG})
    remove_ref(home.store.places, "data")
    assert home.look()[0]["results"].removable_bytes == 0
    areas, cleared = home.clean(ahead_s=7200.0)
    assert areas["results"].goes == "1 result"
    assert cleared.freed_bytes == BIG
    assert found(home.store, "a").has_bytes


def test_what_the_dead_left_goes_and_what_the_living_have_stays(home):
    def die_at_work() -> None:
        folder = home.store.new_staging("stage.abc")
        Path(folder, "half").write_bytes(b"h" * 1000)

    assert code_of(fork(die_at_work)) == 0
    living = home.store.new_staging("stage.mine")
    Path(living, "half").write_bytes(b"h" * 70)
    areas, cleared = home.clean()
    assert (areas["staging"].size_bytes, areas["staging"].removable_bytes) == (1070, 1000)
    assert cleared.freed_bytes == 1000
    assert os.listdir(home.store.places.staging) == [os.path.basename(living)]


def test_evidence_is_kept_for_thirty_days_unless_told(home):
    for name, age_s in (("old", QUARANTINE_S + 60), ("new", 60.0)):
        path = home.write(name, 500)
        set_aside(str(path), home.store.places.quarantine, reason="bad", now_s=time.time() - age_s)
    areas, _ = home.clean()
    assert areas["quarantine"].goes == "1 damaged item"
    assert len(os.listdir(home.store.places.quarantine)) == 2
    assert "evidence" in areas["quarantine"].stays
    home.clean(more=CleanupOptions(quarantine=True))
    assert os.listdir(home.store.places.quarantine) == []


def test_checkpoints_go_when_nobody_came_back_to_them(home):
    clock = FakeClock(start_s=time.time())
    for name, owner in (("ab" * 32, mine()), ("cd" * 32, changed(mine(), start_ticks=1))):
        scratch = open_scratch(os.path.join(home.folders.scratch, name), run_id=name[:4], me=owner, clock=clock)
        Path(scratch.path, "model.pt").write_bytes(b"w" * 1000)
    assert home.look()[0]["scratch"].removable_bytes == 0
    areas, cleared = home.clean(ahead_s=FORGOTTEN_S + 100)
    assert areas["scratch"].removable_bytes > 1000
    assert cleared.freed_bytes == areas["scratch"].removable_bytes
    assert os.listdir(home.folders.scratch) == ["ab" * 32]


def test_uploads_go_after_a_week_of_rest(home):
    home.objects(FakeClock(start_s=time.time())).begin(key_of("some bytes"), 100)
    assert home.look()[0]["uploads"].removable_bytes == 0
    areas, cleared = home.clean(ahead_s=UPLOAD_GRACE_S + 100)
    assert areas["uploads"].goes == "1 idle for 7 days"
    assert cleared.freed_bytes == areas["uploads"].size_bytes > 0
    assert os.listdir(home.store.places.uploads) == []


def test_caches_that_are_made_again_go_and_what_was_learnt_stays(home):
    for name in ("cookbooks.json", "code.json", "history.db", "footprints.db", "sweeps/x", "receipts/r"):
        home.write(f"state/{name}", 100)
    home.write("state/crash-1.txt", 50, age_s=FORGOTTEN_S + 100)
    home.write("state/crash-2.txt", 50)
    areas, cleared = home.clean()
    assert (areas["state"].size_bytes, areas["state"].removable_bytes, cleared.freed_bytes) == (700, 250, 250)
    left = sorted(path.name for path in (home.top / "state").rglob("*") if path.is_file())
    assert left == ["crash-2.txt", "footprints.db", "history.db", "r", "x"]


def test_jobs_models_and_plain_results_are_listed_and_never_touched(home):
    kept = [
        home.write("runs/20261115-031502-7f3a/job.json", 300, age_s=1e8),
        home.write("stoker-out/gbt/report.html", 400, age_s=1e8),
        home.write("hub/models--a--b/blobs/abc", 5000, age_s=1e8),
    ]
    areas, cleared = home.clean(max_bytes=0)
    assert [areas[name].size_bytes for name in ("jobs", "plain results", "models")] == [300, 400, 5000]
    assert all(not areas[name].goes and areas[name].stays for name in ("jobs", "plain results", "models"))
    assert cleared.freed_bytes == 0
    assert all(path.exists() for path in kept)


def test_unfinished_downloads_go_when_they_were_given_up_and_nobody_holds_their_lock(home):
    blobs = "hub/models--a--b/blobs"
    given_up = home.write(f"{blobs}/aa.incomplete", 1000, age_s=ABANDONED_S + 100)
    young = home.write(f"{blobs}/bb.incomplete", 200, age_s=60)
    locked = home.write(f"{blobs}/cc.1234.incomplete", 300, age_s=ABANDONED_S + 100)
    lock = home.write("hub/.locks/models--a--b/cc.lock", 0)
    ours = home.write(f"{blobs}/dd.part", 40, age_s=ABANDONED_S + 100)
    forgotten = home.write(f"{blobs}/ee.part", 7, age_s=FORGOTTEN_S + 100)
    sidecar = home.write(f"{blobs}/ee.part.json", 3, age_s=FORGOTTEN_S + 100)
    claimed = home.write(f"{blobs}/ff.part.0123abcd-0123abcd-0123abcd-77-88", 5, age_s=FORGOTTEN_S + 100)
    stray = home.write(f"{blobs}/gg.part.json", 2, age_s=FORGOTTEN_S + 100)
    assert unfinished_bytes(home.models) == 1557
    with open(lock, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        areas, cleared = home.clean()
    assert areas["unfinished downloads"].goes == ("1 abandoned by another program, 3 unused for 30 days")
    assert cleared.freed_bytes == 1017
    assert [path.exists() for path in (given_up, forgotten, sidecar, claimed, stray)] == [False] * 5
    assert [path.exists() for path in (young, locked, ours)] == [True] * 3


def test_unfinished_downloads_of_ours_go_however_young_when_told_unless_somebody_is_at_them(home):
    blobs = "hub/models--a--b/blobs"
    ours = [home.write(f"{blobs}/aa.part", 40, age_s=60), home.write(f"{blobs}/aa.part.json", 2, age_s=60)]
    theirs = home.write(f"{blobs}/bb.incomplete", 200, age_s=60)
    locked = home.write(f"{blobs}/cc.part", 300, age_s=60)
    claimed = home.write(f"{blobs}/dd.part.0123abcd-0123abcd-0123abcd-77-88", 5, age_s=60)
    assert home.look()[0]["unfinished downloads"].stays == "downloads resume from there; --downloads removes them"
    with open(home.write("hub/.locks/models--a--b/cc.lock", 0), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        areas, cleared = home.clean(more=CleanupOptions(downloads=True))
    assert areas["unfinished downloads"].goes == "1 not in use"
    assert cleared.freed_bytes == 42
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in (theirs, locked, claimed))


def test_what_was_taken_up_again_after_the_look_stays(home):
    blobs, all_of_ours = "hub/models--a--b/blobs", CleanupOptions(downloads=True)
    rested, resumed = (home.write(f"{blobs}/{name}.part", 40, age_s=FORGOTTEN_S + 100) for name in ("aa", "bb"))
    kernel, used = (home.write(f"kernels/{name}/k.so", 30, age_s=FORGOTTEN_S + 100) for name in ("aa", "bb"))
    looked = home.look()
    assert [looked[0][name].removable_bytes for name in ("unfinished downloads", "kernels")] == [80, 60]
    for path in (resumed, used):
        os.utime(path)
    assert home.clear(*looked).freed_bytes == 70
    assert [path.exists() for path in (rested, kernel, resumed, used)] == [False, False, True, True]
    # However young, what a process is at stays: it takes the lock between the look and the removal.
    looked = home.look(more=all_of_ours)
    with open(home.write("hub/.locks/models--a--b/bb.lock", 0), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert home.clear(*looked).freed_bytes == 0
    assert resumed.exists()
    assert home.clear(*looked).freed_bytes == 40


def test_no_link_is_followed_where_something_is_removed(home, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"p" * 100)
    Path(home.store.places.staging, ".999999.1.x").symlink_to(precious)
    (home.top / "state").mkdir()
    (home.top / "state" / "code.json").symlink_to(precious / "file")
    Path(home.store.places.quarantine, "q").symlink_to(precious)
    home.clean(more=CleanupOptions(quarantine=True), ahead_s=FORGOTTEN_S)
    assert (precious / "file").read_bytes() == b"p" * 100
    assert os.listdir(home.store.places.staging) == []
    assert os.listdir(home.store.places.quarantine) == []


@pytest.mark.parametrize("place", ["kernels", "workspaces", "scratch"])
def test_what_a_link_in_place_of_a_folder_leads_to_is_not_touched(home: Home, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "thesis"
    elsewhere.mkdir()
    chapter = elsewhere / "one" / "chapter.txt"
    chapter.parent.mkdir()
    chapter.write_text("words")
    for path in (chapter, chapter.parent):
        os.utime(path, (time.time() - 2 * FORGOTTEN_S, time.time() - 2 * FORGOTTEN_S))
    link = home.top / place
    if link.exists():
        remove_tree(str(link))
    link.symlink_to(elsewhere)
    areas, _ = home.clean()
    assert chapter.read_text() == "words"
    assert areas[place].stays == f"a link to {elsewhere}: not cleaned"


def test_nothing_goes_while_a_ref_or_a_pin_cant_be_read(home):
    home.write("state/code.json", 10)
    Path(home.store.places.refs, "odd.ref").write_bytes(b"junk")
    with pytest.raises(CorruptBytes, match="the ref odd can't be read"):
        home.clean()
    assert (home.top / "state" / "code.json").exists()
    os.unlink(Path(home.store.places.refs, "odd.ref"))
    Path(home.store.places.pins, "odd.json").write_bytes(b"junk")
    with pytest.raises(CorruptBytes, match="pin odd can't be read"):
        home.clean()
    assert (home.top / "state" / "code.json").exists()


def test_one_thing_that_cant_be_removed_is_told_and_does_not_keep_the_rest(home, monkeypatch):
    for name in ("cookbooks.json", "code.json"):
        home.write(f"state/{name}", 100)

    def refuses_one(path: str) -> bool:
        if path.endswith("cookbooks.json"):
            raise NoPermission(f"no permission: {path}")
        return remove_tree(path)

    monkeypatch.setattr(upkeep, "remove_tree", refuses_one)
    _, cleared = home.clean()
    assert cleared.freed_bytes == 100
    assert len(cleared.stuck) == 1
    assert "cookbooks.json" in cleared.stuck[0]


def test_environments_are_a_place_of_their_own_and_go_by_the_same_limit(home: Home) -> None:
    key = "e" * 64
    shelf = home.shelf(FakeClock(start_s=time.time() - 1000))
    os.makedirs(shelf.venv(key))
    shelf.keep(EnvironmentReady(digest=key, key=key, interpreter="/usr/bin/python3", size_bytes=70))
    shelf.use(key)
    assert home.look()[0]["environments"].removable_bytes == 0
    areas, cleared = home.clean(max_bytes=0)
    assert (areas["environments"].goes, areas["environments"].removable_bytes) == ("1 environment", 70)
    assert cleared.freed_bytes >= 70
    assert shelf.all_kept() == []


def test_kernels_go_a_month_after_they_were_compiled_each_with_all_its_files(home: Home) -> None:
    old = home.write("kernels/triton/AA/one.cubin", 30, age_s=FORGOTTEN_S + 60)
    half = home.write("kernels/triton/BB/one.cubin", 40, age_s=FORGOTTEN_S + 60)
    young = home.write("kernels/triton/BB/one.json", 5)
    areas, cleared = home.clean()
    assert (areas["kernels"].size_bytes, areas["kernels"].removable_bytes) == (75, 30)
    assert areas["kernels"].goes == "1 kernel from 30 days ago"
    assert cleared.freed_bytes == 30
    assert not old.parent.exists()
    assert half.exists()
    assert young.exists()
