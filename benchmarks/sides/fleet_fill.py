"""Makes a queue on SQLite long and old: copies of a completed, a failed and a pending job, as many as are asked for.

    python fleet_fill.py queue.db --history 1000000 --pending 1000000

Every tenth of the history failed. Names, recipes and machines are spread, so that filters find some. Each has its
attempt, its event and, if it completed, its result. Nobody else may have the database open.
"""

from __future__ import annotations

import argparse
import sqlite3

NUMBERS = "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < ?)"
HISTORY = {
    "number": "numbers.i",
    "name": "'old' || (numbers.i % 1000)",
    "recipe": "'old/recipe' || (numbers.i % 20)",
    "machine": "'w' || (numbers.i % 50)",
    "state": "CASE numbers.i % 10 WHEN 0 THEN 'failed' ELSE 'completed' END",
}
PENDING = {"number": "numbers.i + 1000000"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=1_000_000)
    asked = parser.parse_args()
    database = sqlite3.connect(asked.database, isolation_level=None)
    for pragma in ("journal_mode=OFF", "synchronous=OFF", "foreign_keys=OFF", "cache_size=-400000"):
        database.execute(f"PRAGMA {pragma}").fetchall()
    database.execute("BEGIN")
    # Made again afterwards: that is quicker than to keep them.
    indexes = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall()
    for name, _ in indexes:
        database.execute(f"DROP INDEX {name}")
    (ended,) = database.execute("SELECT min(seq) FROM jobs WHERE state = 'completed'").fetchone()
    (waits,) = database.execute("SELECT min(seq) FROM jobs WHERE state = 'pending'").fetchone()
    base = _next(database, "jobs", "seq")
    _copy(database, "jobs", ended, asked.history, {**HISTORY, "seq": f"{base} + numbers.i", "id": _id(1)})
    _copy(database, "attempts", ended, asked.history, {"seq": f"{base} + numbers.i", "machine": HISTORY["machine"]})
    events = _next(database, "events", "id")
    kept = f"{events} + numbers.i"
    _copy(database, "events", ended, asked.history, {"id": kept, "seq": f"{base} + numbers.i"}, "kind LIKE '%finished'")
    bundles = _next(database, "bundles", "id")
    _copy(database, "bundles", ended, asked.history, {"id": f"{bundles} + numbers.i", "seq": f"{base} + numbers.i"})
    database.execute("DELETE FROM bundles WHERE seq > ? AND (seq - ?) % 10 = 0", (base, base))
    base = _next(database, "jobs", "seq")
    _copy(database, "jobs", waits, asked.pending, {**PENDING, "seq": f"{base} + numbers.i", "id": _id(2)})
    (kind,) = database.execute("SELECT class_id FROM jobs WHERE seq = ?", (waits,)).fetchone()
    failed = asked.history // 10
    more = {"completed": asked.history - failed, "failed": failed, "pending": asked.pending}
    counts = {**{f"state:{state}": count for state, count in more.items()}, f"class:{kind}": asked.pending}
    put = "INSERT INTO counters VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = value + excluded.value"
    database.executemany(put, counts.items())
    for _, text in indexes:
        database.execute(text)
    database.execute("COMMIT")
    database.execute("PRAGMA journal_mode=WAL").fetchall()


def _id(number: int) -> str:
    return f"printf('%016x', numbers.i) || printf('%048x', {number})"


def _next(database: sqlite3.Connection, table: str, column: str) -> int:
    (newest,) = database.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchone()  # noqa: S608
    return int(newest)


def _copy(
    database: sqlite3.Connection, table: str, seq: int, count: int, others: dict[str, str], where: str = "true"
) -> None:
    """Add copies of a job's row, some columns of which are others."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    taken = ", ".join(others.get(column, f"t.{column}") for column in columns)
    asked = f"{NUMBERS} INSERT INTO {table} SELECT {taken} FROM {table} AS t, numbers WHERE t.seq = ? AND {where}"  # noqa: S608
    database.execute(asked, (count, seq))


if __name__ == "__main__":
    main()
