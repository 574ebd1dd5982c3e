"""Many processes at one store: one winner, no torn file, and nobody trips over anybody."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import CorruptBytes
from stoker.host.durable import remove_tree
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.prune import GRACE_S, all_records, candidates, carry_out, decide_prune
from stoker.store.records import Record
from stoker.store.results import SIDECAR, ResultPart, lay_out
from stoker.store.tree_views import changed_inputs, open_view
from tests.lengths import examples
from tests.unit.host.real_processes import code_of, fork
from tests.unit.store.real_stores import (
    BIG,
    blob_of,
    commit,
    contents,
    files_below,
    found,
    key_of,
    make_store,
    quarantined,
    record_of,
    sweep,
)

PROCESSES = examples(8, 20)
"""How many race."""


def all_at_once(count: int, action: Callable[[int], object]) -> None:
    """Run an action in so many processes that wait for each other before they begin."""
    read_fd, write_fd = os.pipe()

    def wait_and_act(number: int) -> None:
        os.close(write_fd)
        os.read(read_fd, 1)
        action(number)

    pids = [fork(partial(wait_and_act, number)) for number in range(count)]
    os.close(write_fd)
    os.close(read_fd)
    assert [code_of(pid) for pid in pids] == [0] * count


def claim(folder: Path, number: int, text: str) -> None:
    (folder / str(number)).write_text(text)


@pytest.mark.parametrize("before", ["nothing", "damage", "tombstone", "lost bytes"])
def test_of_many_writers_one_wins_and_all_see_the_winner(tmp_path, before):
    claims = tmp_path / "claims"
    claims.mkdir()
    if before != "nothing":
        store = make_store(tmp_path / "store")
        commit(store, "key", {"who": b"earlier" * BIG})
        if before == "damage":
            os.truncate(record_of(store, "key"), 30)
        elif before == "tombstone":
            prune_now(store, ahead_s=10)
            assert found(store, "key").record.is_tombstone
        else:
            blob_of(store, "key", "who").unlink()
        store.close()

    def write(number: int) -> None:
        store = make_store(tmp_path / "store", clock=SystemClock())
        published = commit(store, "key", {"who": b"%d" % number * BIG, "shared": b"s" * BIG})
        winner = contents(store, published.record)["who"]
        again = contents(store, found(store, "key").record)["who"]
        store.close()
        assert store.memo.trouble == ""
        assert winner == again
        claim(claims, number, f"{published.is_ours} {digest_bytes(winner)}")

    all_at_once(PROCESSES, write)
    told = [path.read_text().split(" ") for path in claims.iterdir()]
    assert len(told) == PROCESSES
    assert [is_ours for is_ours, _ in told].count("True") == 1
    assert len({winner for _, winner in told}) == 1


def test_of_many_writers_that_replace_the_last_one_stays_whole(tmp_path):
    def write(number: int) -> None:
        store = make_store(tmp_path / "store", clock=SystemClock())
        published = commit(store, "key", {"who": b"%d" % number * BIG}, replace=True)
        assert published.is_ours
        assert len(set(contents(store, found(store, "key").record)["who"])) <= 2
        store.close()

    all_at_once(PROCESSES, write)
    store = make_store(tmp_path / "store")
    assert found(store, "key").has_bytes
    assert quarantined(store) == []


def test_many_processes_that_find_one_damage_set_it_aside_once(tmp_path):
    store = make_store(tmp_path / "store")
    commit(store, "record", {"x": b"r"})
    commit(store, "blob", {"x": b"b" * BIG})
    os.truncate(record_of(store, "record"), 30)
    os.truncate(blob_of(store, "blob", "x"), 30)
    store.close()

    def look(number: int) -> None:
        other = make_store(tmp_path / "store", clock=SystemClock())
        assert not isinstance(other.lookup(key_of("record")), RecordHit)
        assert found(other, "blob").lost == ("x",)
        other.close()

    all_at_once(PROCESSES, look)
    assert len(quarantined(store)) == 2


def test_many_processes_that_open_one_view_all_get_it_whole(tmp_path):
    store = make_store(tmp_path / "store")
    files = {"small": b"s", "big": b"b" * BIG, **{f"deep/{number}": b"%d" % number for number in range(50)}}
    record = commit(store, "a", files).record
    store.close()

    def read(number: int) -> None:
        other = make_store(tmp_path / "store", clock=SystemClock())
        assert files_below(open_view(other, record)) == files
        assert changed_inputs(other, record) == []
        other.close()

    all_at_once(PROCESSES, read)
    assert os.listdir(store.places.views) == [record.digest]


def test_results_laid_out_by_many_at_once_are_whole_files_of_one_of_them(tmp_path):
    store = make_store(tmp_path / "store")
    versions = [{"report": b"%d" % number, "plots/roc": b"%d" % number * BIG} for number in range(4)]
    records = [commit(store, number, files).record for number, files in enumerate(versions)]
    store.close()
    out = tmp_path / "out"

    def lay(number: int) -> None:
        other = make_store(tmp_path / "store", clock=SystemClock())
        part = ResultPart(record=records[number % 4], folder="", sidecar={})
        lay_out(other, [part], str(out))
        other.close()

    all_at_once(8, lay)
    for path, data in files_below(out).items():
        if path != SIDECAR:
            assert data in [files[path.partition("~")[0]] for files in versions]
    # Whoever comes afterwards, alone, gets exactly what is wanted.
    lay_out(store, [ResultPart(record=records[2], folder="", sidecar={})], str(out))
    assert {name: (out / name).read_bytes() for name in versions[2]} == versions[2]
    store.close()


def prune_now(store: LocalStore, *, ahead_s: float) -> None:
    """Prune everything, as if all files were so much older."""
    clock = FakeClock(start_s=time.time() + ahead_s)
    kept = candidates(store, kept=lambda key: "", label=lambda record: "")
    carry_out(store, decide_prune(kept, now_s=clock.wall_s(), max_bytes=0, older_than_s=None), clock=clock)


def test_writers_that_share_bytes_with_what_is_pruned_under_them_never_name_what_is_gone(tmp_path):
    """The writers' blobs are named by old records that a prune takes all the time."""
    root = tmp_path / "store"
    make_store(root).close()

    def prune_for_ever() -> None:
        store = make_store(root, clock=SystemClock())
        while True:
            # No older than they are: a blob that was touched in the last second is spared.
            prune_now(store, ahead_s=0.9)

    pruner = fork(prune_for_ever)

    def write(number: int) -> None:
        store = make_store(root, clock=SystemClock())
        for turn in range(60):
            name = (number, turn)
            published = commit(store, name, {"x": b"shared" * BIG, "y": b"%d" % (turn % 3) * BIG})
            # Between bytes and name nothing was lost. Afterwards the record may become a tombstone, which is no lie.
            outcome = found(store, name)
            assert outcome.lost == (), (name, outcome.lost)
            assert published.is_ours
        store.close()

    try:
        all_at_once(3, write)
    finally:
        os.kill(pruner, signal.SIGKILL)
        assert code_of(pruner) == -signal.SIGKILL


def test_a_store_used_in_every_way_at_once_gives_right_bytes_or_none(tmp_path):
    root = tmp_path / "store"
    make_store(root).close()
    until_s = time.monotonic() + 1.0

    def expected(name: int) -> dict[str, bytes]:
        return {"x": b"%d" % name * BIG, "y": b"%d" % (name % 3) * 2 * BIG, "z": b"%d" % name}

    def use(number: int) -> None:
        store = make_store(root, clock=SystemClock())
        chance = random.Random(number)
        for _ in itertools.count():
            if time.monotonic() > until_s:
                break
            name = chance.randrange(6)
            act = chance.random()
            if act < 0.4:
                commit(store, name, expected(name), replace=act < 0.1)
            elif act < 0.85:
                _read(store, name, expected(name))
            elif act < 0.95:
                prune_now(store, ahead_s=0.5)
            else:
                _damage(store, chance)
        store.close()

    all_at_once(4, use)
    store = make_store(root)
    for name in range(6):
        commit(store, name, expected(name))
        assert contents(store, found(store, name).record) == expected(name)
    for left in os.listdir(store.places.staging):
        remove_tree(os.path.join(store.places.staging, left))
    sweep(store, clock=FakeClock(start_s=time.time() + GRACE_S + 60))
    named = {entry.sha256 for record, _ in all_records(store) for entry in record.blobs()}
    assert {path.name for path in Path(store.places.blobs).rglob("*") if path.is_file()} == named
    store.close()


def _read(store: LocalStore, name: int, expected: dict[str, bytes]) -> None:
    outcome = store.lookup(key_of(name))
    if not isinstance(outcome, RecordHit) or not outcome.has_bytes:
        return
    try:
        view = open_view(store, outcome.record)
        shown = files_below(view)
    except (CorruptBytes, FileNotFoundError):
        # Pruned or damaged between the look and the reading.
        return
    assert {path: data for path, data in shown.items() if data != expected[path]} == {}


def _damage(store: LocalStore, chance: random.Random) -> None:
    """Replace a file by a damaged copy, as a failing disk would: nobody who has it open is affected."""
    paths = [path for path in Path(store.places.records).rglob("*") if len(path.name) == 64]
    if paths:
        victim = chance.choice(paths)
        temp = victim.with_name(f"damaged-{os.getpid()}")
        temp.write_bytes(b"damaged")
        os.replace(temp, victim)


def test_a_record_is_never_seen_half_written(tmp_path):
    root = tmp_path / "store"
    make_store(root).close()
    body = {"x": "y" * 200_000}

    def write_for_ever() -> None:
        store = make_store(root, clock=SystemClock())
        tree, inline = store.take_in(store.new_staging("x"))
        for number in itertools.count():
            store.publish(
                Record.of(key=key_of("key"), tree=tree, inline=inline, body={**body, "n": number}), replace=True
            )

    writer = fork(write_for_ever)
    seen: set[Any] = set()
    try:
        store = make_store(root)
        deadline_s = time.monotonic() + 20
        while len(seen) < 20:
            outcome = store.lookup(key_of("key"))
            if isinstance(outcome, RecordHit):
                seen.add(outcome.record.body["n"])
            assert time.monotonic() < deadline_s
    finally:
        os.kill(writer, signal.SIGKILL)
        assert code_of(writer) == -signal.SIGKILL
    assert quarantined(store) == []
