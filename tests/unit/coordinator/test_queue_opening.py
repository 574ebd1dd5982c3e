"""Databases: opened, made, refused; and the steps that make them hold what `tables` says."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import sqlite

from stoker.coordinator.database import database as database_database
from stoker.coordinator.database import migrate
from stoker.coordinator.database.database import Database, open_database
from stoker.coordinator.database.tables import METADATA
from stoker.coordinator.queue.sql import Queries
from stoker.coordinator.queue.transaction import words_of
from stoker.core.clock import SystemClock
from stoker.core.errors import AlreadyServing, BadInput, DatabaseTrouble, VersionSkew

CLOCK = SystemClock()


def opened(path: Path) -> Database:
    return open_database(f"sqlite:///{path}", clock=CLOCK)


def test_the_steps_make_what_a_new_database_gets_at_once(tmp_path: Path, sqlite_template: Path) -> None:
    stepped = tmp_path / "stepped.db"
    rows = _carry_out_steps(f"sqlite:///{stepped}")
    assert _schema(stepped) == _schema(sqlite_template)
    assert rows == _first_rows(f"sqlite:///{sqlite_template}")


def test_the_steps_make_the_same_on_postgresql(postgres: object) -> None:
    from tests.servers.postgres import PostgresServer

    assert isinstance(postgres, PostgresServer)
    stepped, new = postgres.create(), postgres.create()
    open_database(new, clock=CLOCK).close()
    rows = _carry_out_steps(stepped.replace("postgresql://", "postgresql+psycopg://"))
    assert _postgres_schema(stepped) == _postgres_schema(new)
    assert rows == _first_rows(new.replace("postgresql://", "postgresql+psycopg://"))


def _carry_out_steps(url: str) -> dict[str, list[tuple[str, ...]]]:
    engine = create_engine(url)
    with closing(engine.connect()) as connection:
        migrate.upgrade(connection)
    engine.dispose()
    return _first_rows(url)


def _first_rows(url: str) -> dict[str, list[tuple[str, ...]]]:
    """Return all rows of a new database, by table."""
    engine = create_engine(url)
    with closing(engine.connect()) as connection:
        found = {
            name: [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{name}"'))]
            for name in (*METADATA.tables, "alembic_version")
        }
    engine.dispose()
    return {name: rows for name, rows in found.items() if rows}


def test_a_new_database_is_its_owners_alone_with_all_that_lies_beside_it(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "queue.db")) as database, closing(database.connect_writer()):
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("queue.db*") if path.suffix != ".serving"
        }
    assert modes
    assert set(modes.values()) == {0o600}


def test_the_newest_step_is_the_one_that_the_program_knows() -> None:
    steps = sorted(name.partition("_")[0] for name in os.listdir(os.path.join(migrate._FOLDER, "versions")))
    numbers = [name for name in steps if name.isdigit()]
    assert numbers[-1] == migrate.HEAD
    assert tuple(numbers) == migrate._VERSIONS


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "postgresql://nobody@127.0.0.1:1/none"])
def test_a_database_that_is_gone_when_the_writer_comes_back_is_told_as_trouble(url: str) -> None:
    database = Database(*database_database._read(url), CLOCK)
    database._lock = None
    with pytest.raises(DatabaseTrouble):
        database.connect_writer()


@pytest.mark.parametrize(
    ("name", "index"),
    [("levels", "jobs_ready"), ("page", "jobs_ready"), ("delayed", "jobs_delayed"), ("next_delay", "jobs_delayed")],
)
def test_a_partial_index_leads_to_those_who_wait(sqlite_template: Path, name: str, index: str) -> None:
    query = getattr(Queries(sqlite.dialect()), name)
    with closing(sqlite3.connect(sqlite_template)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {query.text}", [1] * len(query.names)).fetchall()
    assert [step[3].partition(" (")[0] for step in plan] == [f"SEARCH jobs USING INDEX {index}"]


def test_every_guarded_write_of_many_rows_finds_each_by_its_key_on_postgresql(postgres_url: str) -> None:
    """A plan is made once, for tables that are still empty, and going through all of one looks cheap then."""
    with closing(open_database(postgres_url, clock=CLOCK)) as database, closing(database.connect_writer()) as writer:
        statements = [one for one in words_of(database.dialect).statements.guarded if one.many_text]
        plans = {one.text: writer.rows_of(f"EXPLAIN {one.many_text}", ("[]",)) for one in statements}
    assert plans
    for words, plan in plans.items():
        lines = "\n".join(line for (line,) in plan)
        assert "Index Cond" in lines, f"{words}\n{lines}"


def test_one_coordinator_has_a_database_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path / "q.db")
    with pytest.raises(AlreadyServing):
        opened(tmp_path / "q.db")
    first.close()
    opened(tmp_path / "q.db").close()


def test_one_coordinator_has_a_postgresql_database_at_a_time(postgres_url: str) -> None:
    first = open_database(postgres_url, clock=CLOCK)
    writer = first.connect_writer()
    with pytest.raises(AlreadyServing):
        open_database(postgres_url, clock=CLOCK)
    writer.close()
    open_database(postgres_url, clock=CLOCK).close()
    first.close()


def test_a_database_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "q.db").close()
    with sqlite3.connect(tmp_path / "q.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(VersionSkew, match="9999"):
        opened(tmp_path / "q.db")


def test_somebody_elses_tables_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "q.db") as connection:
        connection.execute("CREATE TABLE jobs (theirs INTEGER)")
    connection.close()
    with pytest.raises(DatabaseTrouble, match="another program: jobs"):
        opened(tmp_path / "q.db")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "q.db").write_text("not a database at all, but some text that is long enough" * 20)
    with pytest.raises(DatabaseTrouble) as caught:
        opened(tmp_path / "q.db")
    assert caught.value.hint == "not a database file; name another one"


def test_a_server_that_is_not_there_is_told_without_its_password() -> None:
    with pytest.raises(DatabaseTrouble) as caught:
        open_database("postgresql://me:secret@127.0.0.1:1/none", clock=CLOCK)
    assert "secret" not in str(caught.value.to_dict())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://me:secret@host/db", "nonsense"])
def test_addresses_that_can_not_be_are_refused(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_database(url, clock=CLOCK)
    assert "secret" not in str(caught.value.to_dict())


def test_readers_may_not_write(tmp_path: Path) -> None:
    database = opened(tmp_path / "q.db")
    with pytest.raises(Exception, match="readonly"), database.readers.connect() as connection:
        connection.execute(text("DELETE FROM meta"))
    database.close()


def test_what_was_answered_survives_a_power_cut(tmp_path: Path) -> None:
    database = opened(tmp_path / "q.db")
    writer = database.connect_writer()
    (mode,), (sync,) = writer.rows_of("PRAGMA journal_mode")[0], writer.rows_of("PRAGMA synchronous")[0]
    assert (mode, sync) == ("wal", 2)
    writer.close()
    database.close()


def _schema(path: Path) -> set[tuple[str, ...]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'")
    # The order of constraints within a table says nothing.
    found = {tuple(sorted(" ".join(statement.split()).rstrip(")").strip().split(", "))) for (statement,) in rows}
    connection.close()
    return found


def _postgres_schema(url: str) -> list[tuple[object, ...]]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        columns = connection.execute(
            text(
                "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default"
                " FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
            )
        )
        indexes = connection.execute(
            text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'")
        )
        keys = connection.execute(
            text(
                "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE connamespace = 'public'::regnamespace AND conname NOT LIKE 'alembic%'"
            )
        )
        found = sorted([tuple(row) for rows in (columns, indexes, keys) for row in rows], key=repr)
    engine.dispose()
    return found
