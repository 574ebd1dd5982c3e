"""`stoker admin db …` as its user sees it: check, backup, restore, move, migrate."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stoker.coordinator.database.backup import back_up
from stoker.coordinator.database.database import look_into, open_database
from stoker.coordinator.database.database_check import check_database
from stoker.core.clock import SystemClock
from tests.contract.queue_driving import busy
from tests.system.shell import Shell


@pytest.fixture
def queue(shell: Shell) -> Path:
    """This home's own database, with some of everything in it, not served."""
    path = shell.home / "fleet" / "queue.db"
    path.parent.mkdir(parents=True)
    busy(f"sqlite:///{path}").close()
    return path


def test_a_check_says_that_all_is_well_or_lists_every_fault(shell: Shell, queue: Path):
    done = shell.stoker("admin", "db", "check")
    assert (done.code, done.err) == (0, "")
    assert "9 jobs, no errors" in done.out
    assert "were not checked" in done.out, "nothing is kept here whose bytes could be looked for"
    with closing(sqlite3.connect(queue)) as connection:
        connection.execute("UPDATE jobs SET state = 'failed' WHERE name = 'plain'")
        connection.execute("DELETE FROM leases")
        connection.commit()
    done = shell.stoker("admin", "db", "check", "--json")
    assert done.code == 1
    *faults, last = done.objects()
    assert {"events_replay", "counters", "one_lease"} <= {fault["rule"] for fault in faults}
    assert last["faults"] == len(faults)
    assert all(fault["message"] for fault in faults)


def test_a_backup_goes_into_postgresql_and_comes_back(shell: Shell, queue: Path, postgres_url: str):
    done = shell.stoker("admin", "db", "backup", "queue.backup")
    assert done.code == 0, done.err
    assert "9 jobs" in done.out
    (restored,) = shell.stoker("admin", "db", "restore", "queue.backup", "--db", postgres_url, "--json").objects()
    assert restored["rows"]["jobs"] == 9
    assert restored["live"] == 1
    target = shell.folder / "back.db"
    moved = shell.stoker("admin", "db", "move", "--db", postgres_url, f"sqlite:///{target}")
    assert moved.code == 0, moved.err
    assert "compared" in moved.out
    database = look_into(f"sqlite:///{target}", clock=SystemClock())
    assert list(check_database(database)) == []
    database.close()


def test_what_would_lose_work_is_refused(shell: Shell, queue: Path):
    backup = shell.folder / "queue.backup"
    serving = open_database(f"sqlite:///{queue}", clock=SystemClock())
    back_up(serving, str(backup), clock=SystemClock())
    held = shell.stoker("admin", "db", "restore", "--replace", backup)
    assert (held.code, "a coordinator serves" in held.err) == (37, True)
    serving.close()
    full = shell.stoker("admin", "db", "restore", backup)
    assert (full.code, "--replace" in full.err) == (32, True)
    data = bytearray(backup.read_bytes())
    data[len(data) // 2] ^= 1
    backup.write_bytes(data)
    damaged = shell.stoker("admin", "db", "restore", "--replace", backup)
    assert (damaged.code, "is damaged" in damaged.err) == (13, True)
    with closing(sqlite3.connect(queue)) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (9,)


def test_migrating_makes_what_is_not_there_and_says_where_it_stands(shell: Shell):
    url = f"sqlite:///{shell.folder}/new.db"
    assert shell.stoker("admin", "db", "check", "--db", url).code == 1, "there is none yet, and none is made"
    made = shell.stoker("admin", "db", "migrate", "--db", url)
    assert (made.code, "created at" in made.out) == (0, True), made.err


def test_no_password_is_ever_shown(shell: Shell):
    done = shell.stoker("admin", "db", "check", "--db", "postgresql://me:hunter2@127.0.0.1:1/none")
    assert done.code == 36
    assert "hunter2" not in done.out + done.err
    assert "127.0.0.1" in done.err
