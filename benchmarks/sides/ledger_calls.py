"""Reserves room on a device and releases it, again and again, in one of three ways.

ledger_calls.py --count N --home DIR --way stoker|json|sqlite

The other two do the least that such a ledger has to: `json` is one file under a lock, read, pruned by process number,
written beside and renamed, synced as its protocol says; `sqlite` is one table, not synced. Neither keeps a line, checks
whose number it is or measures anything.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

GIB = 1024**3
TOTAL = 24 * GIB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--way", choices=("stoker", "json", "sqlite"), required=True)
    asked = parser.parse_args()
    once = {"stoker": by_stoker, "json": by_json, "sqlite": by_sqlite}[asked.way](asked.home)
    for _ in range(10):
        once()
    started = time.perf_counter()
    for _ in range(asked.count):
        once()
    print(json.dumps({"seconds": time.perf_counter() - started, "executed": asked.count}))


def by_stoker(home: Path) -> Callable[[], None]:
    from stoker.core.clock import SystemClock
    from stoker.devices.ledger.ledger import Ledger
    from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter, Reservation

    ledger = Ledger(str(home / "ledger"), clock=SystemClock(), meter=FakeMeter({"GPU-a": TOTAL}))
    ask = DeviceRequest(
        job="bench", devices=(CandidateDevice(uuid="GPU-a", total_bytes=TOTAL),), vram_bytes=6 * GIB, may_share=True
    )

    def once() -> None:
        held = ledger.reserve(ask)
        assert isinstance(held, Reservation)
        ledger.release(held)

    return once


def by_json(home: Path) -> Callable[[], None]:
    path, temp = home / "ledger.json", home / "ledger.tmp"
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT)

    def change(act: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = json.loads(path.read_text()) if path.exists() else []
        rows = act([row for row in rows if is_there(row["pid"])])
        with temp.open("w") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        temp.rename(path)
        fcntl.flock(lock, fcntl.LOCK_UN)

    def once() -> None:
        row: dict[str, object] = {"pid": os.getpid(), "budget": 6 * GIB, "gpu": "GPU-a", "task": "bench"}
        change(lambda rows: [*rows, row] if sum(int(str(one["budget"])) for one in rows) + 6 * GIB <= TOTAL else rows)
        change(lambda rows: [one for one in rows if one["pid"] != os.getpid()])

    return once


def by_sqlite(home: Path) -> Callable[[], None]:
    db = sqlite3.connect(home / "ledger.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=TRUNCATE")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("CREATE TABLE held (id INTEGER PRIMARY KEY, pid INTEGER, budget INTEGER, gpu TEXT, task TEXT)")

    def once() -> None:
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute("SELECT id, pid, budget FROM held WHERE gpu = 'GPU-a'").fetchall()
        assert sum(row[2] for row in rows if is_there(row[1])) + 6 * GIB <= TOTAL
        made = db.execute("INSERT INTO held VALUES (NULL, ?, ?, 'GPU-a', 'bench')", (os.getpid(), 6 * GIB)).lastrowid
        db.execute("COMMIT")
        db.execute("DELETE FROM held WHERE id = ?", (made,))

    return once


def is_there(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except ProcessLookupError:
        return False
    return True


main()
