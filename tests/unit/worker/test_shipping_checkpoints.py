"""Checkpoints: from one machine's scratch folder to the coordinator, and into another machine's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import BadInput, NoCoordinator, NotFound, NotVerified, StaleLease, Unavailable
from stoker.core.frozen import changed
from stoker.core.leases import AttemptToken
from stoker.engine.metrics.attempt_metrics import EarlierCurves, Reports
from stoker.engine.metrics.curves import curves
from stoker.engine.scratch import choose_checkpoint, open_scratch, scratch_path
from stoker.host.identity import mine
from stoker.store.local_store import LocalStore
from stoker.trainer.stoker_trainer import keep_checkpoint
from stoker.transfer.download.types import DownloadStop
from stoker.worker.checkpoint_transfer import CheckpointShipper, WatchedScratch, bring_checkpoint
from tests.fakes.fleet_line import KeptLine

JOB = digest_bytes(b"a job")
KEY = Digest(digest_bytes(b"a resume key"))
TOKEN = AttemptToken(job=JOB, attempt=1, epoch=3, generation=1)


class Machine:
    """One worker's scratch folders."""

    def __init__(self, top, line, clock):
        self.root = str(top / "scratch")
        self.store = LocalStore(str(top / "store"), clock=clock)
        self.work = top / "work"
        self.work.mkdir(parents=True)
        self.store.open()
        self.line = line
        self.clock = clock
        self.told = []
        self.check_lease = lambda: None

    def open(self, run_id):
        return open_scratch(scratch_path(self.root, KEY), run_id=run_id, me=mine(), clock=self.clock)

    def save(self, scratch, step, content=b"weights"):
        path = self.work / f"ckpt-{step}.pt"
        if isinstance(content, dict):
            path.mkdir()
            for name, data in content.items():
                (path / name).write_bytes(data)
        else:
            path.write_bytes(content)
        keep_checkpoint(str(path), step, scratch.path, KEY)

    def shipper(self, run_id="run-1", clock=None, every_s=0.01):
        return CheckpointShipper(
            WatchedScratch(root=self.root, run_id=run_id, every_s=every_s),
            TOKEN,
            self.line,
            clock=clock or self.clock,
            check_lease=self.check_lease,
            log=self.told.append,
            chance=lambda: 0.0,
        )

    def bring(self, granted, run_id="fleet-2"):
        return bring_checkpoint(
            self.line, self.store, granted, self.root, run_id=run_id, stop=DownloadStop(), clock=self.clock
        )

    def chosen(self):
        return choose_checkpoint(scratch_path(self.root, KEY), KEY).checkpoint


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def line(tmp_path, clock):
    keeping = CoordinatorStorage(str(tmp_path / "fleet"), clock)
    yield KeptLine(keeping)
    keeping.close()


@pytest.fixture
def desk(tmp_path, line, clock):
    return Machine(tmp_path / "desk", line, clock)


@pytest.fixture
def lab(tmp_path, line, clock):
    return Machine(tmp_path / "lab", line, clock)


@pytest.mark.parametrize(
    "content", [b"weights" * 1000, {"model.bin": b"m" * 5000, "optimiser.bin": b"o"}], ids=["file", "folder"]
)
def test_a_checkpoint_of_one_machine_is_gone_on_from_on_another(desk, lab, content):
    scratch = desk.open("run-1")
    desk.save(scratch, 400, content)
    shipper = desk.shipper()
    shipper.ship()
    granted = shipper.pointed
    assert (granted.scratch, granted.step) == (KEY, 400)
    assert desk.line.pointed[-1].token(JOB) == TOKEN
    arrived = lab.bring(granted)
    assert arrived.is_placed, arrived.why
    # The plan's own rule, as a program's attempt asks it.
    opened = lab.open("run-2")
    assert opened.goes_on
    assert lab.chosen().step == 400
    path = lab.chosen().path
    assert path.startswith(os.path.realpath(lab.root))
    if isinstance(content, dict):
        assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == content
    else:
        with open(path, "rb") as file:
            assert file.read() == content
    assert os.listdir(os.path.join(lab.root, ".arriving")) == []


def test_the_curve_of_an_earlier_attempt_comes_with_its_checkpoint(desk, lab, tmp_path):
    scratch = desk.open("run-1")

    def measure(machine, name, *steps):
        files = (str(tmp_path / f"{name}.skm"), str(tmp_path / f"{name}.program.skm"))
        reports = Reports(files[0], SystemClock(), EarlierCurves(scratch_path(machine.root, KEY), files))
        for step in steps:
            reports.take({"step": step, "metrics": {"loss": float(step)}})
        reports.close()
        return curves(files[:1])["loss"]

    measure(desk, "first", 1, 2, 3, 4)
    desk.save(scratch, 3)
    shipper = desk.shipper()
    shipper.ship()
    assert lab.bring(shipper.pointed).is_placed
    assert lab.open("run-2").goes_on
    assert measure(lab, "second", 4, 5) == [(step, float(step)) for step in (1, 2, 3, 4, 5)]


def test_only_the_newest_goes_and_it_goes_once(desk):
    scratch = desk.open("run-1")
    for step in (1, 2, 3):
        desk.save(scratch, step, b"%d" % step)
    shipper = desk.shipper()
    shipper.ship()
    shipper.ship()
    assert [said.checkpoint.step for said in desk.line.pointed] == [3]
    desk.save(scratch, 4, b"4")
    shipper.ship()
    assert [said.checkpoint.step for said in desk.line.pointed] == [3, 4]
    # Of the last one only the new file and its index were sent.
    assert desk.line.calls.count("send_pack") == 2


def test_a_new_checkpoint_is_seen_soon_and_many_are_sent_at_the_same_pace(desk, clock):
    scratch = desk.open("run-1")
    shipper = desk.shipper(every_s=2.0)
    desk.save(scratch, 1)
    assert shipper.ship() == 2.0, "after one that was sent"
    clock.advance(2.0)
    assert shipper.ship() == 0.5, "nothing is new"
    assert shipper.ship() == 0.5
    desk.save(scratch, 2, b"2")
    assert shipper.ship() == 2.0
    assert [said.checkpoint.step for said in desk.line.pointed] == [1, 2]


def test_folders_of_others_are_looked_at_less_often_than_its_own(desk, clock, monkeypatch):
    desk.save(desk.open("run-1"), 1)
    shipper = desk.shipper(every_s=2.0)
    shipper.ship()
    listed: list[str] = []

    def listdir(path: str) -> list[str]:
        listed.append(path)
        return []

    monkeypatch.setattr(os, "listdir", listdir)
    for _ in range(8):
        clock.advance(0.5)
        shipper.ship()
    assert len(listed) == 2


def test_what_another_run_saved_is_not_this_attempt_s(desk):
    desk.save(desk.open("somebody else"), 5)
    shipper = desk.shipper()
    shipper.ship()
    assert desk.line.calls == []


def test_bytes_come_before_the_name_and_a_broken_line_is_tried_again(desk):
    desk.save(desk.open("run-1"), 5)
    shipper = desk.shipper()
    desk.line.before = lambda call: NoCoordinator("cut") if call == "checkpoint" else None
    assert shipper.ship() > 0
    assert desk.line.pointed == []
    assert len(desk.line.rows.rows) == 1
    desk.line.before = lambda _call: None
    shipper.ship()
    assert [said.checkpoint.step for said in desk.line.pointed] == [5]
    assert desk.line.calls.index("keep_tree") < desk.line.calls.index("checkpoint")


def test_nothing_is_pointed_at_while_the_lease_is_over_by_our_own_clock(desk):
    desk.save(desk.open("run-1"), 5)

    def over():
        raise Unavailable("the lease is over")

    desk.check_lease = over
    shipper = desk.shipper()
    assert shipper.ship() > 0
    assert desk.line.pointed == []


def test_a_checkpoint_that_is_not_what_was_saved_is_told_and_not_sent(desk):
    scratch = desk.open("run-1")
    desk.save(scratch, 5)
    (saved,) = os.listdir(os.path.join(scratch.path, "checkpoints"))
    with open(os.path.join(scratch.path, "checkpoints", saved), "ab") as file:
        file.write(b"more")
    shipper = desk.shipper()
    shipper.ship()
    assert desk.line.calls == []
    assert "is not what was saved" in desk.told[0]
    shipper.ship()
    assert len(desk.told) == 1


def test_a_stale_token_ends_it(desk):
    scratch = desk.open("run-1")
    desk.save(scratch, 5)
    desk.line.current = changed(TOKEN, epoch=4)
    shipper = desk.shipper()
    shipper.ship()
    assert isinstance(shipper.ended_by, StaleLease)
    assert shipper.settle(desk.clock.monotonic_s() + 30) is None


def test_when_the_attempt_is_over_its_last_checkpoint_is_settled(desk):
    scratch = desk.open("run-1")
    shipper = desk.shipper(clock=SystemClock())
    shipper.begin()
    desk.save(scratch, 7)
    scratch.leave()
    settled = shipper.settle(SystemClock().monotonic_s() + 30)
    assert settled.step == 7


def test_settling_ends_at_its_deadline(desk):
    desk.save(desk.open("run-1"), 7)
    desk.line.before = lambda _call: NoCoordinator("cut")
    clock = SystemClock()
    began_s = clock.monotonic_s()
    assert desk.shipper(clock=clock).settle(began_s + 0.05) is None
    assert clock.monotonic_s() - began_s < 30


@pytest.fixture
def granted(desk):
    desk.save(desk.open("run-1"), 400)
    shipper = desk.shipper()
    shipper.ship()
    return shipper.pointed


def test_what_this_machine_has_itself_stays_if_it_is_as_new(desk, lab, granted):
    own = lab.open("earlier")
    lab.save(own, 500, b"newer")
    own.leave()
    arrived = lab.bring(granted)
    assert not arrived.is_placed
    assert "step 500" in arrived.why
    assert lab.chosen().step == 500
    assert "tree_listing" not in lab.line.calls


def test_what_this_machine_has_is_replaced_if_it_is_older(lab, granted):
    own = lab.open("earlier")
    lab.save(own, 300, b"older")
    own.leave()
    assert lab.bring(granted).is_placed
    assert lab.chosen().step == 400


def test_a_folder_in_which_somebody_works_is_left_alone(lab, granted):
    lab.save(lab.open("somebody"), 300, b"older")
    arrived = lab.bring(granted)
    assert not arrived.is_placed
    assert "somebody works there" in arrived.why
    assert lab.chosen().step == 300


def test_nothing_is_placed_that_is_not_what_was_granted(lab, granted):
    with pytest.raises(NotFound):
        lab.bring(granted.model_copy(update={"tree": "1" * 64}))
    with pytest.raises(BadInput):
        lab.bring(granted.model_copy(update={"scratch": "../../etc"}))
    with pytest.raises(NotVerified, match="another configuration"):
        lab.bring(granted.model_copy(update={"scratch": digest_bytes(b"another key")}))
    assert lab.chosen() is None
    left = [name for _, folders, files in os.walk(lab.root) for name in (*folders, *files)]
    assert left == [".arriving"]


def test_an_attempt_that_succeeds_leaves_nothing_to_ship(desk):
    scratch = desk.open("run-1")
    desk.save(scratch, 5)
    shutil.rmtree(scratch.path)
    shipper = desk.shipper()
    shipper.ship()
    assert desk.line.calls == []
