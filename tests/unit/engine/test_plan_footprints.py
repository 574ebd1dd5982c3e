from __future__ import annotations

import sqlite3
import threading

import pytest

from stoker.core.digests import Digest, digest_value
from stoker.engine.run_history import Footprint, Footprints

MIB = 2**20
ONE = digest_value("configuration", ["tabular/train", {"depth": 3}])
OTHER = digest_value("configuration", ["tabular/train", {"depth": 5}])


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "footprints.sqlite")


def ran(footprints: Footprints, peak_bytes: int | None, *, killed_at: int | None = None, of: Digest = ONE) -> None:
    footprints.note(
        of, peak_bytes=peak_bytes, was_out_of_memory=killed_at is not None, cap_bytes=killed_at or 900 * MIB
    )


def test_what_never_ran_is_not_known(path):
    assert Footprints(path).known(ONE) is None


def test_the_largest_peak_stays_and_runs_are_counted(path):
    footprints = Footprints(path)
    for peak in (300, 500, 400):
        ran(footprints, peak * MIB)
    assert footprints.known(ONE) == Footprint(runs=3, peak_bytes=500 * MIB, killed_at_bytes=None)
    assert footprints.known(OTHER) is None
    footprints.close()


def test_a_peak_that_nobody_measured_takes_nothing_away(path):
    footprints = Footprints(path)
    ran(footprints, None)
    assert footprints.known(ONE) == Footprint(runs=1, peak_bytes=None, killed_at_bytes=None)
    ran(footprints, 5 * MIB)
    ran(footprints, None)
    assert footprints.known(ONE) == Footprint(runs=3, peak_bytes=5 * MIB, killed_at_bytes=None)
    footprints.close()


def test_the_highest_cap_at_which_it_was_killed_is_remembered(path):
    footprints = Footprints(path)
    ran(footprints, 64 * MIB, killed_at=64 * MIB)
    ran(footprints, 96 * MIB, killed_at=96 * MIB)
    ran(footprints, 70 * MIB, killed_at=70 * MIB)
    ran(footprints, 100 * MIB)
    assert footprints.known(ONE) == Footprint(runs=4, peak_bytes=100 * MIB, killed_at_bytes=96 * MIB)
    footprints.close()


def test_the_largest_part_of_a_device_stays(path):
    footprints = Footprints(path)
    assert footprints.known_gpu(ONE) is None
    for peak_bytes in (5 * MIB, 9 * MIB, 7 * MIB):
        footprints.note_gpu(ONE, peak_bytes)
    assert (footprints.known_gpu(ONE), footprints.known_gpu(OTHER)) == (9 * MIB, None)
    # What it takes of the machine is another thing.
    assert footprints.known(ONE) is None
    footprints.close()


def test_an_index_from_before_there_were_devices_is_used_on(path):
    db = sqlite3.connect(path)
    columns = "configuration TEXT PRIMARY KEY, runs INTEGER NOT NULL, peak INTEGER, killed_at INTEGER"
    db.execute(f"CREATE TABLE footprint ({columns}) WITHOUT ROWID")
    db.execute("INSERT INTO footprint VALUES (?, 1, 5, NULL)", (ONE,))
    db.commit()
    db.close()
    footprints = Footprints(path)
    footprints.note_gpu(ONE, 7)
    assert footprints.known_gpu(ONE) == 7
    assert footprints.known(ONE) == Footprint(runs=1, peak_bytes=5, killed_at_bytes=None)
    footprints.close()


def test_it_is_there_for_the_next_process(path):
    first = Footprints(path)
    ran(first, 7 * MIB)
    first.close()
    second = Footprints(path)
    known = second.known(ONE)
    assert known is not None
    assert known.peak_bytes == 7 * MIB
    # Closing is no end: it opens again.
    ran(first, 9 * MIB)
    known = second.known(ONE)
    assert known is not None
    assert known.peak_bytes == 9 * MIB
    first.close()
    second.close()


def test_many_threads_and_two_connections_lose_no_run(path):
    pair = (Footprints(path), Footprints(path))

    def work(number: int) -> None:
        for count in range(10):
            ran(pair[number % 2], (number * 10 + count) * MIB)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [footprints.trouble for footprints in pair] == ["", ""]
    assert pair[0].known(ONE) == Footprint(runs=40, peak_bytes=39 * MIB, killed_at_bytes=None)
    for footprints in pair:
        footprints.close()


def test_a_damaged_index_says_so_and_fails_nothing(path, tmp_path):
    (tmp_path / "footprints.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    footprints = Footprints(path)
    ran(footprints, 5 * MIB)
    assert footprints.known(ONE) is None
    assert path in footprints.trouble
    footprints.close()


def test_an_index_that_cannot_be_made_says_so_and_fails_nothing(tmp_path):
    footprints = Footprints(str(tmp_path / "no" / "such" / "folder" / "x.sqlite"))
    ran(footprints, 5 * MIB)
    assert footprints.known(ONE) is None
    assert "unable to open" in footprints.trouble
    footprints.close()


def test_an_index_of_another_shape_says_so_and_fails_nothing(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE footprint (something TEXT)")
    db.close()
    footprints = Footprints(path)
    ran(footprints, 5 * MIB)
    assert footprints.known(ONE) is None
    assert footprints.trouble
    footprints.close()
