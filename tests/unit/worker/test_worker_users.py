"""The users that jobs run as: read, refused with the reason, taken and given back. As root where that is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import BadInput, LockHeld
from stoker.host.user_switch import end_everybody_of, processes_of, start_as
from stoker.host.users import OtherUser, read_users, why_not_allowed
from stoker.worker.job_users import UserPool, check_users, lock_users, why_unreachable

NUMBER = 30_000_000 + 2 * os.getpid()
ANNA = OtherUser(name="anna", uid=NUMBER, gid=NUMBER)
BERT = OtherUser(name="bert", uid=NUMBER + 1, gid=NUMBER + 1)
NAMED = OtherUser(name="anna", uid=NUMBER, gid=NUMBER, home="/home/anna")
CLOCK = SystemClock()

as_root = pytest.mark.skipif(bool(why_not_allowed()), reason=f"programs of other users: {why_not_allowed()}")


@pytest.fixture
def home(open_path: Path) -> Path:
    """A home that everybody may pass to."""
    return open_path / "home"


def test_a_range_is_numbers_that_nobody_has():
    assert [user.uid for user in read_users("61000-61002")] == [61000, 61001, 61002]
    assert {user.home for user in read_users("61000-61002")} == {""}


def test_a_named_user_has_its_own_groups_and_home():
    (user,) = read_users("nobody")
    assert (user.name, user.uid > 0, user.home != "") == ("nobody", True, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty user list"),
        ("no-such-user", "user no-such-user not found"),
        ("root", "root"),
        ("0-2", "not a range"),
        ("61002-61000", "not a range"),
        ("1-5", "a range is for unused user ids"),
        ("nobody,nobody", "twice"),
        ("61000-99999999", "not a range"),
    ],
    ids=["nobody", "unknown", "root", "zero", "backwards", "somebody", "twice", "huge"],
)
def test_users_that_jobs_must_not_be_are_refused(text: str, said: str):
    with pytest.raises(BadInput) as refused:
        read_users(text)
    assert said in refused.value.message


@as_root
def test_a_home_is_closed_but_for_where_jobs_work(home: Path):
    (home / "state").mkdir(parents=True)
    (home / "state").chmod(0o755)
    (home / "loose.txt").write_text("x")
    check_users((ANNA,), slots=1, home=str(home), folder=str(home / "users"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in home.iterdir()}
    assert modes == {
        "state": 0o700,
        "store": 0o700,
        "runs": 0o700,
        "fleet": 0o700,
        "kernels": 0o700,
        "loose.txt": 0o600,
        "scratch": 0o711,
        "workspaces": 0o711,
        "envs": 0o755,
    }
    assert home.stat().st_mode & 0o777 == 0o711


@as_root
def test_fewer_users_than_slots_are_refused(home: Path):
    with pytest.raises(BadInput) as refused:
        check_users((ANNA,), slots=2, home=str(home), folder="")
    assert "2 jobs at once need 2 users" in refused.value.message


@as_root
def test_a_home_behind_a_closed_door_is_refused_and_the_door_named(home: Path):
    home.parent.chmod(0o700)
    with pytest.raises(BadInput) as refused:
        check_users((ANNA,), slots=1, home=str(home), folder="")
    assert f"{home.parent} is closed to it" in refused.value.message
    assert why_unreachable("/usr/bin", ANNA) == ""


@as_root
def test_a_user_who_runs_something_of_its_own_is_refused(home: Path):
    child = start_as(NAMED, ("/bin/sleep", "60"), cwd="/", env={})
    try:
        # Until it has switched, it is ours. Other tests may have processes of that user.
        while child.identity.pid not in {row.pid for row in processes_of(NAMED.uid)}:
            CLOCK.sleep(0.01)
        with pytest.raises(BadInput) as refused:
            check_users((NAMED,), slots=1, home=str(home), folder=str(home / "users"))
        assert f"process {child.identity.pid}" in refused.value.message
    finally:
        child.stop(grace_s=0.0)


def test_without_root_the_reason_is_told():
    if os.geteuid() != 0:
        assert why_not_allowed() == "it needs root"
        return
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not here")
    asked = "from stoker.host.users import why_not_allowed; print(why_not_allowed())"
    words = ["setpriv", "--bounding-set", "-setuid", "--", sys.executable, "-c", asked]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    assert "without CAP_SETUID" in said


@as_root
def test_each_attempt_has_a_user_of_its_own_until_it_gives_it_back(tmp_path: Path):
    pool = UserPool((ANNA, BERT), str(tmp_path / "users"), CLOCK)
    pool.open(())
    first, second = pool.take("run-1"), pool.take("run-2")
    assert {first.uid, second.uid} == {ANNA.uid, BERT.uid}
    with pytest.raises(BadInput):
        pool.take("run-3")
    pool.give_back("run-1")
    pool.give_back("run-1")
    assert pool.take("run-3") == first


@as_root
def test_a_successor_knows_whose_user_is_in_use(tmp_path: Path):
    pool = UserPool((ANNA, BERT), str(tmp_path / "users"), CLOCK)
    pool.open(())
    kept, _ = pool.take("goes-on"), pool.take("ended")
    successor = UserPool((ANNA, BERT), str(tmp_path / "users"), CLOCK)
    successor.open(("goes-on",))
    assert successor.take("new") != kept
    with pytest.raises(BadInput):
        successor.take("one more")


@as_root
def test_whoever_is_left_is_ended_before_a_user_is_given_away(tmp_path: Path):
    pool = UserPool((ANNA,), str(tmp_path / "users"), CLOCK)
    pool.open(())
    user = pool.take("run-1")
    child = start_as(user, ("/bin/sh", "-c", "sleep 60 & sleep 60"), cwd="/", env={})
    while not processes_of(user.uid):
        CLOCK.sleep(0.01)
    pool.give_back("run-1")
    assert not processes_of(user.uid)
    assert child.wait(10).signal is not None


@as_root
def test_two_workers_do_not_share_users(tmp_path: Path):
    held = lock_users((ANNA,), str(tmp_path), CLOCK)
    try:
        with pytest.raises(LockHeld) as refused:
            lock_users((BERT, ANNA), str(tmp_path), CLOCK)
        assert "anna" in refused.value.message
    finally:
        for lock in held:
            lock.release()
    for lock in lock_users((BERT, ANNA), str(tmp_path), CLOCK):
        lock.release()


def test_roots_own_processes_are_never_ended():
    with pytest.raises(ValueError, match="not ours"):
        end_everybody_of(0, CLOCK)
