"""What the database's verbs promise, on SQLite and on PostgreSQL: check, back up, restore, move."""

from __future__ import annotations

import copy
import gzip
import io
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text

from stoker.coordinator.database.backup import back_up, move, next_generation, restore, table_digests
from stoker.coordinator.database.database import Database, look_into, open_database, snapshot
from stoker.coordinator.database.database_check import check_database, check_rows
from stoker.coordinator.database.history import Violation
from stoker.coordinator.queue.commands import Write
from stoker.core.clock import FakeClock
from stoker.core.errors import AlreadyServing, Conflict, Damaged, LocalFile, NotFound, StaleLease, VersionSkew
from stoker.core.leases import AttemptToken
from stoker.protocol.lease_messages import Finish
from tests.contract.queue_driving import Driven, busy, order
from tests.servers.postgres import PostgresServer

CLOCK = FakeClock(start_s=1_800_000_000.0)


@pytest.fixture(scope="session")
def busy_sqlite(sqlite_template: Path) -> tuple[str, Driven]:
    path = sqlite_template.with_name("busy.db")
    shutil.copyfile(sqlite_template, path)
    return str(path), _was_busy(f"sqlite:///{path}")


@pytest.fixture(scope="session")
def busy_postgres(postgres: PostgresServer, postgres_template: str) -> tuple[str, Driven]:
    url = postgres.create(postgres_template)
    return url.rpartition("/")[2], _was_busy(url)


def _was_busy(url: str) -> Driven:
    fleet = busy(url)
    fleet.close()
    return fleet


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest) -> Driven:
    """A queue with some of everything, for tests that leave it as it was."""
    was: Driven = request.getfixturevalue("busy_sqlite" if request.param == "sqlite" else "busy_postgres")[1]
    return was


@pytest.fixture(params=["sqlite", "postgresql"])
def rested(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driven]:
    """A queue with some of everything, that nobody serves: a copy of this test's own."""
    if request.param == "sqlite":
        template, was = request.getfixturevalue("busy_sqlite")
        shutil.copyfile(template, tmp_path / "queue.db")
        yield _copy_of(was, f"sqlite:///{tmp_path}/queue.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    template, was = request.getfixturevalue("busy_postgres")
    url = server.create(template)
    yield _copy_of(was, url)
    server.drop(url)


def _copy_of(was: Driven, url: str) -> Driven:
    copied = copy.copy(was)
    copied.url, copied.objects, copied.clock = url, dict(was.objects), copy.copy(was.clock)
    return copied


@pytest.fixture
def fleet(rested: Driven) -> Iterator[Driven]:
    """The same, served."""
    rested.open()
    yield rested
    rested.close()


@pytest.fixture
def database(shared: Driven) -> Iterator[Database]:
    """The shared one, open without a coordinator."""
    opened = open_database(shared.url, clock=CLOCK)
    yield opened
    opened.close()


@pytest.fixture
def other_url(request: pytest.FixtureRequest, rested: Driven, tmp_path: Path) -> Iterator[str]:
    """An empty database of the other sort."""
    if rested.url.startswith("postgresql"):
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "other.db")
        yield f"sqlite:///{tmp_path}/other.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create(request.getfixturevalue("postgres_template"))
    yield url
    server.drop(url)


def found(fleet: Driven) -> list[Violation]:
    database = look_into(fleet.url, clock=CLOCK)
    try:
        return list(check_database(database, has_object=fleet.objects.get))
    finally:
        database.close()


@contextmanager
def tampered(url: str, statement: str) -> Iterator[Connection]:
    """Change rows behind the queue's back; unless the block commits it, it is undone."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text(statement))
        yield connection


def digests(database: Database) -> dict[str, tuple[int, str]]:
    with snapshot(database) as connection:
        return table_digests(connection)


def test_a_busy_queue_kept_all_its_promises(shared: Driven):
    assert found(shared) == []


OF_RUNNING = "(SELECT seq FROM jobs WHERE state = 'running')"
OF_DONE = "(SELECT min(seq) FROM jobs WHERE state = 'completed')"
TAMPERING = {
    "a counter": ("UPDATE counters SET value = value + 1 WHERE key = 'state:completed'", "counters"),
    "a class's counter": ("DELETE FROM counters WHERE key LIKE 'class:%'", "counters"),
    "a lease": ("DELETE FROM leases", "one_lease"),
    "an old lease": ("UPDATE leases SET epoch = epoch - 1", "no_stale_write"),
    "an epoch": (f"UPDATE jobs SET epoch = epoch - 1 WHERE seq = {OF_RUNNING}", "epochs_grow"),
    "a state": (f"UPDATE jobs SET state = 'failed' WHERE seq = {OF_DONE}", "events_replay"),
    "an event": (f"DELETE FROM events WHERE seq = {OF_DONE} AND kind = 'job_started'", "events_replay"),
    "an event of nobody": ("UPDATE events SET seq = 4711 WHERE kind = 'machine_joined'", "events_replay"),
    "a bundle's row": (f"DELETE FROM bundles WHERE seq = {OF_DONE}", "bundle_has_bytes"),
    "a bundle's bytes": ("UPDATE bundles SET size_bytes = 11", "bundle_has_bytes"),
    "a place in the line": ("UPDATE jobs SET is_ready = false WHERE name = 'prep'", "waits_with_reason"),
    "what a job waits for": ("DELETE FROM after", "waits_with_reason"),
    "a job's order": ("UPDATE jobs SET spec = replace(spec, 'gbt', 'knn') WHERE name = 'prep'", "integrity"),
    "what a job wants": ("UPDATE jobs SET spec = substr(spec, 1, 100) WHERE name = 'prep'", "integrity"),
    "a result's digest": (f"UPDATE jobs SET tree = 'no digest' WHERE seq = {OF_DONE}", "integrity"),
    "a state that there is not": (f"UPDATE jobs SET state = 'done' WHERE seq = {OF_DONE}", "integrity"),
    "a class": ("UPDATE classes SET wanted = replace(wanted, 'cpu', 'gpu')", "integrity"),
    "what was measured": (f"UPDATE jobs SET metrics = '{{' WHERE seq = {OF_DONE}", "integrity"),
    "the generation": ("UPDATE meta SET value = '0' WHERE key = 'generation'", "epochs_grow"),
}


@pytest.mark.parametrize(("statement", "rule"), TAMPERING.values(), ids=TAMPERING.keys())
def test_whatever_is_changed_behind_its_back_is_found(shared: Driven, statement: str, rule: str):
    with tampered(shared.url, statement) as connection:
        assert rule in {one.rule for one in check_rows(connection, has_object=shared.objects.get)}


def test_bytes_that_are_gone_are_found_once_somebody_looks(database: Database):
    assert {one.rule for one in check_database(database, has_object=lambda _: None)} == {"bundle_has_bytes"}
    assert list(check_database(database)) == []


def test_sqlites_own_damage_is_found(tmp_path: Path, busy_sqlite: tuple[str, Driven]):
    shutil.copyfile(busy_sqlite[0], tmp_path / "queue.db")
    fleet = _copy_of(busy_sqlite[1], f"sqlite:///{tmp_path}/queue.db")
    with tampered(fleet.url, "DELETE FROM jobs WHERE name = 'plain'") as connection:
        connection.commit()
        root = connection.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").scalar_one()
        page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    assert any(one.rule == "integrity" and "references a missing row of jobs" in one.message for one in found(fleet))
    with (tmp_path / "queue.db").open("r+b") as file:
        # A page's first bytes say what it is: these say nothing.
        file.seek((root - 1) * page_bytes)
        file.write(b"\xff" * 2000)
    assert any("the rest can't be read" in one.message for one in found(fleet))


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (b'"recipe":"tabular/gbt"', "jobs, row .*: spec is not text"),
        (b'"requirements"', "classes, row 1: wanted is not text"),
        (b'"hostname":"m1"', "machines, row m1: capability is not text"),
    ],
    ids=["jobs", "classes", "machines"],
)
def test_bytes_that_were_damaged_inside_a_value_are_found(
    tmp_path: Path, busy_sqlite: tuple[str, Driven], written: bytes, fault: str
):
    """SQLite itself takes any bytes for text."""
    data = Path(busy_sqlite[0]).read_bytes()
    (tmp_path / "queue.db").write_bytes(data.replace(written, b"\xff" * len(written)))
    damaged = found(_copy_of(busy_sqlite[1], f"sqlite:///{tmp_path}/queue.db"))
    assert any(one.rule == "integrity" and re.fullmatch(fault, one.message) for one in damaged), damaged


def test_a_backup_is_taken_while_it_is_served_and_restored_elsewhere(fleet: Driven, other_url: str, tmp_path: Path):
    path = str(tmp_path / "queue.backup")
    seen: list[tuple[int, int]] = []
    before = digests(fleet.database)
    head = back_up(fleet.database, path, clock=CLOCK, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (head.total, head.total)
    assert (head.generation, head.rows["jobs"]) == (1, 9)
    fleet.submit(order("later"))
    target = open_database(other_url, clock=CLOCK)
    with open(path, "rb") as file:
        done = restore(target, file, "queue.backup", clock=CLOCK)
    assert done.live == 1
    assert done.generation > 1
    after = digests(target)
    # Heartbeats are written down whenever it suits the coordinator.
    told_anew = {"meta", "claims", "events", "machines", "leases"}
    assert {name: told for name, told in after.items() if name not in told_anew} == {
        name: told for name, told in before.items() if name not in told_anew
    }
    assert list(check_database(target, has_object=fleet.objects.get)) == []
    target.close()


def test_two_backups_of_the_same_moment_are_the_same_bytes(database: Database, tmp_path: Path):
    for name in ("one", "two"):
        back_up(database, str(tmp_path / name), clock=CLOCK)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_after_a_restore_old_epochs_never_return(fleet: Driven, tmp_path: Path):
    path = str(tmp_path / "queue.backup")
    back_up(fleet.database, path, clock=CLOCK)
    held = fleet.reader.machines("m1")[0].held[0]
    (granted_later,) = fleet.claim()
    fleet.close()
    database = open_database(fleet.url, clock=fleet.clock)
    with open(path, "rb") as file:
        generation = restore(database, file, path, clock=fleet.clock, may_replace=True).generation
    database.close()
    fleet.open()
    counts = fleet.reader.counts()
    assert (counts["running"], counts["claimed"]) == (0, 0), "what ran when the backup was made waits again"
    fleet.join("m1")
    sha256 = "f" * 64
    fleet.objects[sha256] = 1
    result: dict[str, Any] = {"tree": sha256, "archive_sha256": sha256, "size_bytes": 1}
    of_then = [(held.job, held.attempt, held.epoch), (granted_later.job, granted_later.attempt, granted_later.epoch)]
    again = {grant.job: grant for grant in fleet.claim(most=4)}
    for job, attempt, epoch in of_then:
        assert not fleet.queue.is_current(AttemptToken(job=job, attempt=attempt, epoch=epoch, generation=1))
        said = Finish(attempt=attempt, epoch=epoch, generation=1, **result)
        with pytest.raises(StaleLease):
            fleet.ask(Write(job=job, said=said))
        assert again[job].generation == generation
    for grant in again.values():
        fleet.finish(grant)
    assert found(fleet) == []


def test_the_same_backup_restored_twice_has_two_generations():
    first = next_generation(1, 1_700_000_000.0)
    assert next_generation(1, 1_700_000_001.0) > first
    assert next_generation(first, 1_600_000_000.0) == first + 1, "a clock that went back does not bring one back"


def test_a_database_that_holds_work_is_only_replaced_on_purpose(database: Database, tmp_path: Path):
    path = str(tmp_path / "queue.backup")
    back_up(database, path, clock=CLOCK)
    before = digests(database)
    with open(path, "rb") as file, pytest.raises(Conflict, match="not empty"):
        restore(database, file, path, clock=CLOCK)
    assert digests(database) == before


def test_a_served_database_is_neither_restored_nor_moved(fleet: Driven):
    with pytest.raises(AlreadyServing):
        open_database(fleet.url, clock=CLOCK)
    look_into(fleet.url, clock=CLOCK).close()


def _flipped(data: bytes) -> bytes:
    plain = gzip.decompress(data).replace(b"tabular/gbt", b"tabular/knn", 1)
    return gzip.compress(plain)


def _without_end(data: bytes) -> bytes:
    return gzip.compress(b"\n".join(gzip.decompress(data).split(b"\n")[:-2]) + b"\n")


def _without_a_row(data: bytes) -> bytes:
    lines = gzip.decompress(data).split(b"\n")
    return gzip.compress(b"\n".join(lines[:-4] + lines[-3:]))


def _of_tomorrow(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'"v":1', b'"v":2', 1))


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], type[Exception]]] = {
    "cut": (lambda data: data[: len(data) // 2], Damaged),
    "a bit flipped in the middle": (
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        Damaged,
    ),
    "a value changed": (_flipped, Damaged),
    "no end": (_without_end, Damaged),
    "a row is missing": (_without_a_row, Damaged),
    "of a newer program": (_of_tomorrow, VersionSkew),
    "something else": (lambda _: b"not a backup at all", LocalFile),
    "nothing": (lambda _: b"", LocalFile),
}


@pytest.mark.parametrize(("damage", "error"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_backup_changes_nothing(
    database: Database, tmp_path: Path, damage: Callable[[bytes], bytes], error: type[Exception]
):
    path = tmp_path / "queue.backup"
    back_up(database, str(path), clock=CLOCK)
    before = digests(database)
    with pytest.raises(error):
        restore(database, io.BytesIO(damage(path.read_bytes())), "it", clock=CLOCK, may_replace=True)
    assert digests(database) == before


def test_a_move_brings_every_row_and_running_work_goes_on(fleet: Driven, other_url: str):
    held = fleet.reader.machines("m1")[0].held[0]
    fleet.close()
    source, target = open_database(fleet.url, clock=CLOCK), open_database(other_url, clock=CLOCK)
    head = move(source, target, clock=CLOCK)
    assert digests(source) == digests(target)
    assert head.rows["jobs"] == 9
    source.close()
    target.close()
    fleet.url = other_url
    fleet.open()
    token = AttemptToken(job=held.job, attempt=held.attempt, epoch=held.epoch, generation=1)
    assert fleet.queue.is_current(token)
    assert found(fleet) == []
    # Before its database goes.
    fleet.close()


def test_nothing_is_moved_onto_somebody_elses_work(rested: Driven, other_url: str):
    other = Driven(other_url)
    other.submit(order("theirs"))
    other.close()
    source, target = open_database(rested.url, clock=CLOCK), open_database(other_url, clock=CLOCK)
    before = digests(target)
    with pytest.raises(Conflict):
        move(source, target, clock=CLOCK)
    assert digests(target) == before
    move(source, target, clock=CLOCK, may_replace=True)
    assert digests(target) == digests(source)
    source.close()
    target.close()


def test_to_look_makes_no_file(tmp_path: Path):
    with pytest.raises(NotFound):
        look_into(f"sqlite:///{tmp_path}/nothing.db", clock=CLOCK)
    assert list(tmp_path.iterdir()) == []


def test_to_look_makes_no_tables(postgres_url: str):
    with pytest.raises(NotFound):
        look_into(postgres_url, clock=CLOCK)


def test_tables_of_another_version_are_not_read_as_ours(database_url: str):
    with tampered(database_url, "UPDATE alembic_version SET version_num = '0999'") as connection:
        connection.commit()
    with pytest.raises(VersionSkew) as caught:
        look_into(database_url, clock=CLOCK)
    assert caught.value.data["found"] == "0999"


def test_a_moment_does_not_change_while_somebody_looks_at_it(fleet: Driven):
    with snapshot(fleet.database) as connection:
        first: Any = connection.execute(text("SELECT count(*) FROM jobs")).scalar()
        fleet.submit(order("meanwhile"))
        assert connection.execute(text("SELECT count(*) FROM jobs")).scalar() == first
    with snapshot(fleet.database) as connection:
        now: Any = connection.execute(text("SELECT count(*) FROM jobs")).scalar()
    assert now == first + 1
