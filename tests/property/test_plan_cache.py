"""The cache as a state machine: whatever is damaged, pruned or asked for, results are right and forecasts come true."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.authoring import PlanBuilder, Tip
from stoker.engine.plan import Plan
from stoker.store.records import Record
from tests.unit.engine.lab import Lab, quick_folder
from tests.unit.engine.stages import CountArgs, NumberArgs, add, blob, blob_sum, count, double, parity

SEEDS = st.integers(0, 2)
VALUES = st.integers(0, 3)


def plan_for(seed: int, value: int) -> Plan:
    """Blobs, inline records, a list, a fan-out and one that follows it item by item."""
    start = PlanBuilder("model").start(blob, NumberArgs(value=seed))
    total = start.then(blob_sum, NumberArgs(value=value))
    total.then(parity)
    items = start.builder.start(count, CountArgs(n=value)).each(double)
    again = items.each(double, NumberArgs(value=10 + seed), id="again")
    feeds: list[tuple[str | None, Tip]] = [(None, total), (None, items), (None, again)]
    return start.builder.add(add, NumberArgs(value=seed), id="all", feeds=feeds).finish()


def expected(seed: int, value: int) -> int:
    return seed + 4000 * seed + value + sum(2 * item + 4 * item for item in range(value))


class CacheMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.home = ExitStack()
        self.lab = Lab(self.home.enter_context(quick_folder()) / "lab")
        self.intact: set[tuple[int, int]] = set()
        self.keys: dict[str, Any] = {}

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self.lab.close()
            self.home.close()

    @rule(seed=SEEDS, value=VALUES)
    def run(self, seed: int, value: int) -> None:
        plan = plan_for(seed, value)
        forecasts = {one.node: str(one.verdict) for one in self.lab.preview(plan).forecasts}
        ran = self.lab.run(plan)
        assert ran.result.error is None
        assert self.lab.value(ran, "all") == expected(seed, value)
        for node, verdict in forecasts.items():
            if verdict != "unknown":
                assert ran.endings[node] == {"hit": "hit", "miss": "ran"}[verdict], node
        if (seed, value) in self.intact:
            assert ran.result.ran == 0
        self.intact.add((seed, value))
        self.keys.update({str(node.key): node.key for node in ran.result.nodes.values() if node.key})

    @rule(seed=SEEDS, value=VALUES, stage=st.sampled_from(["blob", "blob-sum", "double", "again", "all"]))
    def rerun(self, seed: int, value: int, stage: str) -> None:
        ran = self.lab.run(plan_for(seed, value), rerun=frozenset({stage}))
        assert ran.result.error is None
        assert self.lab.value(ran, "all") == expected(seed, value)
        assert ran.endings[stage] == ("ran" if stage not in ("double", "again") or value else "hit")
        self.intact.add((seed, value))
        self.keys.update({str(node.key): node.key for node in ran.result.nodes.values() if node.key})

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys.values())))
        if isinstance(self.lab.store.peek(key), Record):
            self.lab.prune(key)
        self.intact.clear()

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "delete"]))
    def damage_a_record(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys.values())))
        self._damage(self.lab.record_path(key), how)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "delete"]))
    def damage_a_blob(self, data: st.DataObject, how: str) -> None:
        blobs = sorted(path for path in Path(self.lab.store.places.blobs).rglob("*") if path.is_file())
        if blobs:
            self._damage(data.draw(st.sampled_from(blobs)), how)

    def _damage(self, path: Path, how: str) -> None:
        self.intact.clear()
        if not path.exists():
            return
        if how == "delete":
            path.unlink()
            return
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[: len(data) // 2] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))

    @rule()
    def begin_a_new_process(self) -> None:
        self.lab = self.lab.again()

    @invariant()
    def nothing_is_left_in_staging(self) -> None:
        if hasattr(self, "lab"):
            assert self.lab.staged() == []


TestCache = CacheMachine.TestCase
# What a failure looks like is clear enough without the last phase, which takes minutes here.
TestCache.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


@pytest.mark.slow
class TestCacheAtLength(CacheMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(TestCache.settings, max_examples=150, stateful_step_count=40)
