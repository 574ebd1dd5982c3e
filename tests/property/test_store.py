"""The store against a model of three dictionaries: what was published, which bytes are there, what is pinned.

Whatever is done in whatever order (publish, prune, damage, delete, pin, sweep, another process's store), a lookup gives
exactly what the model says, with right bytes or none.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes
from stoker.store.local_store import RecordHit, RecordMiss
from stoker.store.prune import GRACE_S, candidates, carry_out, decide_prune
from stoker.store.records import Record
from stoker.store.refs import list_pins, pin, unpin
from stoker.store.results import SIDECAR, ResultPart, lay_out
from stoker.store.tree_views import changed_inputs, open_view
from tests.lengths import examples
from tests.unit.store.real_stores import (
    BIG,
    DAY_S,
    commit,
    contents,
    files_below,
    key_of,
    make_store,
    quarantined,
    stage_and_take_in,
    sweep,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
# Few contents, so that records often share blobs; the small ones go inline. Drawn by name, to be read in a report.
CONTENTS = {"x": b"x" * BIG, "y": b"y" * BIG, "z": b"z" * (BIG + 1), "small": b"small", "empty": b""}
CONTENT = st.sampled_from(list(CONTENTS))
FILES = st.fixed_dictionaries({"one": CONTENT}, optional={"two": CONTENT, "sub/three": CONTENT})
HOW = st.sampled_from(["flip", "truncate", "delete", "folder"])


@dataclass
class Known:
    """What the model knows of a key."""

    files: dict[str, bytes]
    used_s: float
    is_tombstone: bool = False

    @property
    def blobs(self) -> set[bytes]:
        return {data for data in self.files.values() if len(data) > 4096} if not self.is_tombstone else set()

    @property
    def inline_bytes(self) -> int:
        return sum(len(data) for data in self.files.values() if len(data) <= 4096)


@dataclass
class Model:
    known: dict[str, Known] = field(default_factory=dict)
    blobs: set[bytes] = field(default_factory=set)
    pins: dict[str, set[str]] = field(default_factory=dict)

    def named(self) -> set[bytes]:
        return set().union(*(one.blobs for one in self.known.values()))

    def lost(self, name: str) -> list[str]:
        one = self.known[name]
        return sorted(path for path, data in one.files.items() if data in one.blobs and data not in self.blobs)

    def has_bytes(self, name: str) -> bool:
        return name in self.known and not self.known[name].is_tombstone and not self.lost(name)

    def pinned(self) -> set[str]:
        return set().union(*self.pins.values())


class StoreMachine(RuleBasedStateMachine):
    taken = Bundle("taken")

    @initialize(drawn=st.lists(FILES, min_size=2, max_size=4))
    def begin(self, drawn: list[dict[str, str]]) -> None:
        # In memory where there is such a place: what is tested is not the disk.
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.clock = FakeClock(start_s=time.time() + 10)
        self.store = make_store(self.folder / "store", clock=self.clock)
        self.model = Model()
        self.damaged = 0
        for name, files in zip("abcd", drawn, strict=False):
            self._publish(name, files, replace=False)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                for name in "abcd":
                    self._check(name, verify=False)
            finally:
                self.store.close()
                shutil.rmtree(self.folder)

    # --- writing ------------------------------------------------------------------------------

    @rule(name=NAMES, files=FILES, replace=st.booleans())
    def publish(self, name: str, files: dict[str, str], replace: bool) -> None:
        self._publish(name, files, replace=replace)

    def _publish(self, name: str, drawn: dict[str, str], *, replace: bool) -> None:
        files = {path: CONTENTS[content] for path, content in drawn.items()}
        published = commit(self.store, name, files, replace=replace)
        # What it brings in may make an earlier result whole before that is looked at.
        self.model.blobs |= {data for data in files.values() if len(data) > 4096}
        is_theirs = self.model.has_bytes(name) and not replace
        assert published.is_ours is not is_theirs
        if is_theirs:
            self._use(name)
        else:
            self.model.known[name] = Known(files, self._mtime(name))

    @rule(target=taken, drawn=FILES)
    def take_in_only(self, drawn: dict[str, str]) -> tuple[dict[str, bytes], Record]:
        files = {path: CONTENTS[content] for path, content in drawn.items()}
        tree, inline, staging = stage_and_take_in(self.store, files)
        shutil.rmtree(staging)
        self.model.blobs |= {data for data in files.values() if len(data) > 4096}
        return files, Record.of(key=key_of("later"), tree=tree, inline=inline, body={})

    @rule(taken=taken, name=NAMES)
    def publish_what_was_taken_in(self, taken: tuple[dict[str, bytes], Record], name: str) -> None:
        """Later than it should be: its bytes may have been swept or damaged meanwhile."""
        files, record = taken
        is_theirs = self.model.has_bytes(name)
        published = self.store.publish(record.under(key_of(name), {}))
        assert published.is_ours is not is_theirs
        if is_theirs:
            self._use(name)
        else:
            self.model.known[name] = Known(files, self._mtime(name))

    @rule(names=st.sets(NAMES), pin_name=st.sampled_from(["p", "p/q"]))
    def pin(self, names: set[str], pin_name: str) -> None:
        pin(self.store.places, pin_name, tuple(key_of(name) for name in sorted(names)))
        self.model.pins[pin_name] = names

    @rule(pin_name=st.sampled_from(["p", "p/q"]))
    def unpin(self, pin_name: str) -> None:
        assert unpin(self.store.places, pin_name) is (self.model.pins.pop(pin_name, None) is not None)

    # --- damage -------------------------------------------------------------------------------

    @precondition(lambda self: self.model.blobs)
    @rule(chance=st.randoms(), how=HOW)
    def damage_a_blob(self, chance: random.Random, how: str) -> None:
        data = chance.choice(sorted(self.model.blobs))
        self._damage(self._blob(data), how)
        self.model.blobs.discard(data)

    @precondition(lambda self: self.model.known)
    @rule(chance=st.randoms(), how=HOW)
    def damage_a_record(self, chance: random.Random, how: str) -> None:
        name = chance.choice(sorted(self.model.known))
        self._damage(Path(self.store.places.record(key_of(name))), how)
        del self.model.known[name]
        outcome = self.store.lookup(key_of(name))
        assert isinstance(outcome, RecordMiss)
        assert bool(outcome.damage) is (how != "delete")
        self.damaged += how != "delete"

    @rule(what=st.sampled_from(["memo", "views", "process"]))
    def lose_what_is_not_needed(self, what: str) -> None:
        self.store.close()
        if what == "memo":
            (self.folder / "store" / "memo.db").unlink(missing_ok=True)
        if what == "views":
            shutil.rmtree(self.store.places.views)
        self.store = make_store(self.folder / "store", clock=self.clock)

    # --- time and tidiness --------------------------------------------------------------------

    @rule(days=st.sampled_from([0.01, 0.5, 3]))
    def time_passes(self, days: float) -> None:
        self.clock.advance(days * DAY_S)

    @rule(max_bytes=st.sampled_from([0, 2 * BIG, None]), older_days=st.sampled_from([None, 1, 2]))
    def prune(self, max_bytes: int | None, older_days: int | None) -> None:
        pinned = {key_of(name) for name in self.model.pinned()}
        decision = decide_prune(
            candidates(self.store, kept=lambda key: "pinned" if key in pinned else "", label=lambda record: ""),
            now_s=self.clock.wall_s(),
            max_bytes=max_bytes,
            older_than_s=older_days * DAY_S if older_days is not None else None,
        )
        went = {str(removal.key) for removal in decision.removals}
        self._check_decision(went, max_bytes, older_days)
        carry_out(self.store, decision, clock=self.clock)
        gone: set[bytes] = set()
        for name, one in self.model.known.items():
            if key_of(name) in went:
                gone |= one.blobs
                one.is_tombstone = True
        self.model.blobs -= gone - self.model.named()
        # Nobody is at work, so what lost its last name goes at once.
        assert not [data[:1] for data in gone - self.model.named() if self._blob(data).exists()]
        self._forget_unnamed_blobs()

    @rule()
    def sweep(self) -> None:
        sweep(self.store, clock=self.clock)
        self._forget_unnamed_blobs()

    # --- looking ------------------------------------------------------------------------------

    @rule(name=NAMES, verify=st.booleans())
    def look(self, name: str, verify: bool) -> None:
        self._check(name, verify=verify)

    def _check(self, name: str, *, verify: bool) -> None:
        outcome = self.store.verify_record(key_of(name)) if verify else self.store.lookup(key_of(name))
        if name not in self.model.known:
            assert outcome == RecordMiss()
            return
        assert isinstance(outcome, RecordHit)
        if not verify:
            self._use(name)
        assert sorted(outcome.lost) == self.model.lost(name)
        assert outcome.has_bytes is self.model.has_bytes(name)
        assert {entry.path for entry in outcome.record.tree.entries} == set(self.model.known[name].files)
        if outcome.has_bytes:
            files = self.model.known[name].files
            assert contents(self.store, outcome.record) == files
            assert files_below(open_view(self.store, outcome.record)) == files
            assert changed_inputs(self.store, outcome.record) == []

    @precondition(lambda self: any(self.model.has_bytes(name) for name in self.model.known))
    @rule(chance=st.randoms())
    def lay_out(self, chance: random.Random) -> None:
        name = chance.choice([name for name in sorted(self.model.known) if self.model.has_bytes(name)])
        outcome = self.store.lookup(key_of(name))
        assert isinstance(outcome, RecordHit)
        self._use(name)
        laid_out = lay_out(
            self.store, [ResultPart(record=outcome.record, folder="", sidecar={})], str(self.folder / "out")
        )
        assert laid_out.kept_edits == ()
        shown = files_below(self.folder / "out")
        del shown[SIDECAR]
        assert shown == self.model.known[name].files

    @invariant()
    def pins_are_what_was_pinned(self) -> None:
        if hasattr(self, "model"):
            assert {one.name: set(one.keys) for one in list_pins(self.store.places)} == {
                name: {key_of(key) for key in keys} for name, keys in self.model.pins.items()
            }

    @invariant()
    def every_set_aside_file_has_its_reason(self) -> None:
        if hasattr(self, "model"):
            assert len(quarantined(self.store)) >= self.damaged

    # --- what the model does by itself --------------------------------------------------------

    def _blob(self, data: bytes) -> Path:
        return Path(self.store.places.blob(digest_bytes(data)))

    def _mtime(self, name: str) -> float:
        return os.stat(self.store.places.record(key_of(name))).st_mtime

    def _use(self, name: str) -> None:
        one = self.model.known[name]
        if self.clock.wall_s() - one.used_s > 3600:
            one.used_s = self.clock.wall_s()
        assert abs(self._mtime(name) - one.used_s) < 0.001

    def _damage(self, path: Path, how: str) -> None:
        if how in ("delete", "folder"):
            path.unlink()
        if how == "folder":
            path.mkdir()
        if how == "flip":
            damaged = bytearray(path.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            path.chmod(0o644)
            path.write_bytes(damaged)
        if how == "truncate":
            os.truncate(path, path.stat().st_size - 1)

    def _forget_unnamed_blobs(self) -> None:
        """What nobody names and nobody touched for an hour is gone after a sweep."""
        for data in self.model.blobs - self.model.named():
            if not self._blob(data).exists():
                self.model.blobs.discard(data)
        if self.clock.wall_s() > time.time() + GRACE_S:
            assert self.model.blobs <= self.model.named()

    def _check_decision(self, went: set[str], max_bytes: int | None, older_days: int | None) -> None:
        alive = {name: one for name, one in self.model.known.items() if not one.is_tombstone}
        pinned = self.model.pinned()
        assert went <= {key_of(name) for name in alive if name not in pinned}
        now_s = self.clock.wall_s()
        for name, one in alive.items():
            if older_days is not None and now_s - one.used_s > older_days * DAY_S and name not in pinned:
                assert key_of(name) in went
        stay = {name: one for name, one in alive.items() if key_of(name) not in went}
        if max_bytes is not None:
            blobs = set().union(*(one.blobs for one in stay.values()))
            total = sum(map(len, blobs)) + sum(one.inline_bytes for one in stay.values())
            free = [name for name in stay if name not in pinned]
            held = set().union(*(stay[name].blobs for name in stay if name in pinned))
            # It fits, or all that is left is pinned or would free nothing.
            assert total <= max_bytes or all(stay[name].blobs <= held and not stay[name].inline_bytes for name in free)
        else:
            assert older_days is not None or not went


StoreMachine.TestCase.settings = settings(
    max_examples=examples(30, 60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestStore = StoreMachine.TestCase
