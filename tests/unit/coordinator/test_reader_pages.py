"""Lists of jobs: newest first, page by page, whatever is filtered; and no page costs more because much is behind it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, event, insert, text

from stoker.coordinator.database.database import Database, look_into
from stoker.coordinator.database.tables import CLASSES, COUNTERS, JOBS, LEASES
from stoker.coordinator.queue import job_pages
from stoker.coordinator.queue.reader import QueueReader
from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput

STATES = ("completed", "completed", "failed", "pending", "running", "cancelled", "completed")
ALL_STATES = ("pending", "claimed", "running", "completed", "failed", "cancelled")
COUNT = 45


def job_row(seq: int, **more: Any) -> dict[str, Any]:
    state = STATES[seq % len(STATES)]
    return {
        "seq": seq,
        "id": f"{seq * 2654435761 % (1 << 32):08x}{seq:056x}",
        "name": f"job{seq % 5}",
        "number": seq % 3,
        "recipe": f"cook/r{seq % 4}",
        "spec": "{}",
        "class_id": 1,
        "state": state,
        "is_ready": state == "pending",
        "since_s": float(seq),
        "submitted_s": float(seq),
        "changed_s": float(seq),
        "machine": "" if state == "pending" else f"m{seq % 2}",
        "submitter": f"user{seq % 4}",
        "label": f"lr={seq % 6}",
        "priority": seq % 3,
        "started_s": None if state == "pending" or seq % 11 == 0 else float(seq * 7 % 13),
        "ended_s": float(seq * 5 % 11) if state in ("completed", "failed", "cancelled") else None,
        **more,
    }


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with jobs of every sort, which these tests only read."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("pages") / "queue.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        database_url = f"sqlite:///{path}"
    else:
        database_url = request.getfixturevalue("postgres").create(request.getfixturevalue("postgres_template"))
    rows = [job_row(seq) for seq in range(1, COUNT + 1)]
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(insert(CLASSES), {"id": 1, "key": "k", "wanted": "{}"})
        connection.execute(insert(JOBS), rows)
        counts = {state: sum(row["state"] == state for row in rows) for state in STATES}
        connection.execute(insert(COUNTERS), [{"key": f"state:{key}", "value": n} for key, n in counts.items()])
        running = next(row["seq"] for row in rows if row["state"] == "running")
        lease = {"attempt": 1, "epoch": 1, "generation": 1, "machine": "m1", "incarnation": "i", "until_s": 1.0}
        progress = '{"step":3,"of":10,"metrics":{"loss":0.5},"says":"training"}'
        connection.execute(insert(LEASES), {"seq": running, **lease, "devices": '["GPU-1"]', "progress": progress})
    opened = look_into(database_url, clock=FakeClock())
    yield opened
    opened.close()


@pytest.fixture
def reader(database: Database) -> QueueReader:
    return QueueReader(database, clock=FakeClock(start_s=50.0))


def walk(reader: QueueReader, limit: int, **filters: Any) -> list[str]:
    names, after = [], ""
    for _ in range(COUNT * 2):
        page = reader.page(**filters, after=after, limit=limit)
        assert len(page.jobs) <= limit
        names += [job.id for job in page.jobs]
        after = page.next
        if not after:
            return names
    raise AssertionError("the list does not end")


FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a state": {"state": "failed"},
    "several states": {"state": "running,pending"},
    "a name": {"name": "job3"},
    "a recipe": {"recipe": "cook/r1"},
    "a machine": {"machine": "m1"},
    "a recipe in a state": {"recipe": "cook/r1", "state": "completed"},
    "a machine in a state": {"machine": "m1", "state": "completed"},
    "a name and a recipe": {"name": "job3", "recipe": "cook/r1"},
    "all at once": {"name": "job3", "recipe": "cook/r1", "machine": "m1", "state": "completed,failed"},
    "a submitter": {"submitter": "user2"},
    "a submitter in a state": {"submitter": "user2", "state": "completed"},
    "a submitter and a machine": {"submitter": "user2", "machine": "m1"},
    "nobody": {"name": "nobody"},
    "nobody anywhere": {"name": "nobody", "machine": "m1"},
}


def rows_of(filters: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows that pass, newest first."""
    return [
        row
        for row in (job_row(seq) for seq in range(COUNT, 0, -1))
        if all(row[column] in value.split(",") for column, value in filters.items())
    ]


@pytest.mark.parametrize(("window", "few"), [(19, 0), (10_000, 20)], ids=["small windows", "few"])
def test_pages_give_every_job_once_and_in_order(
    reader: QueueReader, monkeypatch: pytest.MonkeyPatch, window: int, few: int
):
    monkeypatch.setattr(job_pages, "_WINDOW", window)
    monkeypatch.setattr(job_pages, "_FEW", few)
    for name, filters in FILTERS.items():
        wanted = [row["id"] for row in rows_of(filters)]
        for limit in (7, 1000):
            assert walk(reader, limit, **filters) == wanted, (name, limit)


SORTED: dict[str, Any] = {
    "submitted": lambda row: -row["seq"],
    "started": lambda row: (row["started_s"] is None, -(row["started_s"] or 0), -row["seq"]),
    "-started": lambda row: (row["started_s"] is None, row["started_s"] or 0, row["seq"]),
    "ended": lambda row: (row["ended_s"] is None, -(row["ended_s"] or 0), -row["seq"]),
    "-ended": lambda row: (row["ended_s"] is None, row["ended_s"] or 0, row["seq"]),
    "name": lambda row: (row["name"], row["seq"]),
    "priority": lambda row: (-row["priority"], -row["seq"]),
    "-priority": lambda row: (row["priority"], row["seq"]),
    "state": lambda row: (ALL_STATES.index(row["state"]), -row["seq"]),
}


@pytest.mark.parametrize("sort", SORTED)
def test_every_order_has_every_job_once(reader: QueueReader, monkeypatch: pytest.MonkeyPatch, sort: str):
    monkeypatch.setattr(job_pages, "_WINDOW", 19)
    for name, few in (("nothing", 0), ("several states", 0), ("a submitter", 0), ("a machine in a state", 20)):
        monkeypatch.setattr(job_pages, "_FEW", few)
        wanted = [row["id"] for row in sorted(rows_of(FILTERS[name]), key=SORTED[sort])]
        assert walk(reader, 9, sort=sort, **FILTERS[name]) == wanted, name


def test_a_part_of_a_name_or_label_finds_jobs_whatever_its_case(reader: QueueReader):
    def found(**filters: str) -> set[int]:
        return {int(id[-4:], 16) for id in walk(reader, 10, **filters)}

    rows = rows_of({})
    assert found(q="OB3") == {row["seq"] for row in rows if row["name"] == "job3"}
    assert found(q="lr=2") == {row["seq"] for row in rows if row["label"] == "lr=2"}
    assert found(q="job3/2") == {row["seq"] for row in rows if (row["name"], row["number"]) == ("job3", 2)}
    assert found(q="%") == found(q="_") == set()
    assert found(sweep="job3") == {row["seq"] for row in rows if row["name"] == "job3" and row["number"]}
    some = [rows[3]["id"], rows[9]["id"]]
    assert walk(reader, 10, ids=",".join(some)) == some
    assert walk(reader, 10, ids=f"{some[0]},{'0' * 64}", state=rows[3]["state"]) == some[:1]


def test_names_in_the_order_of_a_language_are_listed_once_each(postgres: Any, postgres_template: str) -> None:
    url = postgres.create(postgres_template)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    names = ["apple", "Berry", "cherry", "Date", "elder", "Fig", "grape", "Hazel"]
    rows = [
        job_row(seq, name=name, state="failed" if seq in (1, 4, 6, 7) else "completed", ended_s=1.0)
        for seq, name in enumerate(names, 1)
    ]
    with engine.begin() as connection:
        connection.execute(insert(CLASSES), {"id": 1, "key": "k", "wanted": "{}"})
        connection.execute(insert(JOBS), rows)
        counts = [{"key": f"state:{state}", "value": 4} for state in ("completed", "failed")]
        connection.execute(insert(COUNTERS), counts)
        connection.execute(text('ALTER TABLE jobs ALTER COLUMN name TYPE varchar(200) COLLATE "en-x-icu"'))
    opened = look_into(url, clock=FakeClock())
    try:
        listed = walk(QueueReader(opened, clock=FakeClock()), 2, sort="name", state="completed,failed")
    finally:
        opened.close()
    assert listed == [row["id"] for row in rows]


def test_the_number_by_state_is_of_the_whole_filter_and_says_if_it_is_cut(
    reader: QueueReader, monkeypatch: pytest.MonkeyPatch
):
    cases: tuple[dict[str, Any], ...] = (
        {"submitter": "user1"},
        {"recipe": "cook/r1"},
        {"name": "job1", "machine": "m0"},
    )
    for filters in cases:
        rows = rows_of(filters)
        page = reader.page(state="failed", limit=1, **filters)
        assert {key: value for key, value in page.counts.items() if value} == Counter(row["state"] for row in rows)
        assert page.total == sum(row["state"] == "failed" for row in rows)
    assert sum(reader.page(q="job2").counts.values()) == 9
    monkeypatch.setattr(job_pages, "_COUNTED", 10)
    page = reader.page(q="job")
    assert (sum(page.counts.values()), page.is_counts_cut, page.total) == (10, True, None)


def test_marks_lead_to_every_so_many_jobs(reader: QueueReader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_pages, "MARK_EVERY", 4)
    cases: tuple[dict[str, Any], ...] = ({}, {"state": "completed"})
    for filters in cases:
        rows = rows_of(filters)
        page = reader.page(has_marks=True, limit=1, **filters)
        assert len(page.marks) >= (len(rows) - 1) // 4
        for place, mark in enumerate(page.marks[: (len(rows) - 1) // 4], 1):
            assert reader.page(after=mark, limit=1, **filters).jobs[0].id == rows[4 * place]["id"]
    assert reader.page(has_marks=True, sort="name").marks == reader.page().marks == ()


def test_a_search_that_takes_too_long_says_where_to_go_on(reader: QueueReader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_pages, "_WINDOW", 15)
    monkeypatch.setattr(job_pages, "_LONGEST_S", -1.0)
    monkeypatch.setattr(job_pages, "_FEW", 0)
    for sort in ("", "name", "ended"):
        page = reader.page(q="nobody", machine="m1", sort=sort)
        assert page.jobs == ()
        assert page.next, "it looked at one window only"
        assert walk(reader, 10, q="nobody", machine="m1", sort=sort) == []
    rows = [job_row(seq) for seq in range(COUNT, 0, -1)]
    wanted = [row["id"] for row in rows if (row["name"], row["machine"]) == ("job3", "m1")]
    assert walk(reader, 3, name="job3", machine="m1") == wanted


def test_totals_come_from_counters_where_there_is_one(reader: QueueReader):
    counts = reader.counts()
    assert counts["claimed"] == 0
    assert reader.page(limit=1).total == COUNT == sum(counts.values())
    assert reader.page(state="failed", limit=1).total == counts["failed"]
    assert reader.page(state="failed, running", limit=1).total == counts["failed"] + counts["running"]
    assert reader.page(name="job1", limit=1).total == len(rows_of({"name": "job1"}))


def test_a_job_in_a_list_says_how_far_it_is_and_what_it_waits_for(reader: QueueReader):
    running = walk(reader, 1000, state="running")[-1]
    (job,) = [one for one in reader.page(state="running").jobs if one.id == running]
    assert (job.step, job.of, job.says, job.metrics) == (3, 10, "training", {"loss": 0.5})
    assert job.devices == ("GPU-1",)
    assert all(one.why == "waits for a machine" for one in reader.page(state="pending").jobs)
    assert {one.name for one in reader.page(name="job0").jobs} == {"job0", "job0/1", "job0/2"}


@pytest.mark.parametrize("word", ["x", "é", "ajEuNS4wMDAwMDAwMA", "-" * 300, "ajEuLTEuMDAwMDAwMDA"])
def test_a_cursor_that_is_not_ours_is_refused(reader: QueueReader, word: str):
    with pytest.raises(BadInput, match="is not a cursor of this list"):
        reader.page(after=word)


def test_a_cursor_of_another_list_is_refused(reader: QueueReader):
    after = reader.page(state="completed", limit=2).next
    assert reader.page(state="completed", after=after).jobs
    with pytest.raises(BadInput):
        reader.page(state="failed", after=after)
    with pytest.raises(BadInput):
        reader.page(state="completed", sort="name", after=after)
    with pytest.raises(BadInput, match="can't be sorted by 'nmae'"):
        reader.page(sort="nmae")


@pytest.mark.parametrize(("sort", "value"), [("started", "x"), ("name", 1.5), ("", 3), ("priority", [1])])
def test_a_cursor_with_a_value_of_another_kind_is_refused(reader: QueueReader, sort: str, value: Any):
    filters = {"sort": sort} if sort else {}
    with pytest.raises(BadInput, match="is not a cursor of this list"):
        reader.page(sort=sort, after=job_pages.write_cursor((0, value, 3), filters))


def test_a_state_that_does_not_exist_is_refused_with_the_nearest(reader: QueueReader):
    with pytest.raises(BadInput) as caught:
        reader.page(state="complete")
    assert caught.value.hint == "did you mean 'completed'?"


def test_a_limit_is_kept_within_reason(reader: QueueReader):
    assert len(reader.page(limit=0).jobs) == 1
    assert len(reader.page(limit=10**9).jobs) == COUNT


def test_every_filter_alone_has_an_index_in_order(tmp_path: Path, sqlite_template: Path):
    """What SQLite says it would do: search by an index, sort nothing."""
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    database = look_into(f"sqlite:///{path}", clock=FakeClock())
    asked: list[tuple[str, Any]] = []

    @event.listens_for(database.readers, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    reader = QueueReader(database, clock=FakeClock())
    reader.page()
    reader.page(state="failed")
    reader.page(name="x")
    reader.page(recipe="x")
    reader.page(machine="x")
    reader.page(submitter="x")
    for sort in job_pages.SORTS:
        reader.page(sort=sort)
    reader.ready_numbers({(1, 0): 5})
    reader.names([1, 2])
    with database.readers.connect() as connection:
        for statement, parameters in asked[:]:
            if "FROM jobs" in statement:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                told = " / ".join(row[3] for row in plan)
                assert "TEMP B-TREE" not in told or "count(*)" in statement, (statement, told)
                is_in_order = "WHERE" not in statement and "ORDER BY" in statement
                assert "SCAN jobs" not in told or is_in_order, (statement, told)
    database.close()


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_any_page_of_a_million_jobs_takes_at_most_a_tenth_of_a_second(database_url: str):
    from stoker.core.clock import SystemClock

    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(insert(CLASSES), {"id": 1, "key": "k", "wanted": "{}"})
        rows = [job_row(seq, spec="x" * 500) for seq in range(1, 20_001)]
        connection.execute(insert(JOBS), rows)
        others = ", ".join(name for name in rows[0] if name not in ("seq", "id"))
        for more in range(20_000, 1_000_000, 20_000):
            new = f"seq + {more}, 'x' || CAST(seq + {more} AS TEXT), {others}"
            connection.execute(text(f"INSERT INTO jobs (seq, id, {others}) SELECT {new} FROM jobs WHERE seq <= 20000"))
        connection.execute(text("INSERT INTO counters SELECT 'state:' || state, count(*) FROM jobs GROUP BY state"))
    if database_url.startswith("postgresql"):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    database = look_into(database_url, clock=SystemClock())
    reader, clock = QueueReader(database, clock=SystemClock()), SystemClock()
    for name, filters in FILTERS.items():
        took = []
        for _ in range(5):
            began_s = clock.monotonic_s()
            reader.page(**filters)
            took.append(clock.monotonic_s() - began_s)
        assert min(took) <= 0.1, (name, took)
    database.close()
