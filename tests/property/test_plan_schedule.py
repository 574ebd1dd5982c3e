"""The schedule as a state machine over random graphs: nothing starts early, twice or never, and every run ends."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.execution.schedule import ENDED, NodeState, Schedule
from tests.lengths import examples


@st.composite
def graphs(draw: st.DrawFn) -> list[set[int]]:
    """What each node needs, by position; only earlier ones, so there is no cycle."""
    count = draw(st.integers(1, 12))
    return [
        set(draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True))) if index else set()
        for index in range(count)
    ]


def build(graph: list[set[int]]) -> Schedule:
    schedule = Schedule()
    for index, needs in enumerate(graph):
        schedule.add(f"n{index}", rank=(index,), needs=[f"n{one}" for one in needs])
    return schedule


class Run:
    """A run that makes random moves, and a simple idea of what each of them means."""

    def __init__(self, graph: list[set[int]], seed: int) -> None:
        self.graph = graph
        self.chance = random.Random(seed)
        self.schedule = build(graph)
        self.running: set[str] = set()
        self.parked: set[str] = set()
        self.done: set[str] = set()
        self.ever_done: set[str] = set()
        self.ended: set[str] = set()

    def needs(self, name: str) -> set[str]:
        return {f"n{one}" for one in self.graph[int(name[1:])]}

    def pick(self, names: set[str]) -> str | None:
        return self.chance.choice(sorted(names)) if names else None

    def take(self) -> None:
        ready = [f"n{index}" for index in range(len(self.graph)) if self.schedule.state(f"n{index}") is NodeState.READY]
        name = self.schedule.next_ready()
        assert name == (ready[0] if ready else None)
        if name is not None:
            # A producer that was sent back does not call back who was ready already.
            assert self.needs(name) <= self.ever_done
            self.running.add(name)

    def finish(self) -> None:
        if name := self.pick(self.running):
            self.running.discard(name)
            self.done.add(name)
            self.ever_done.add(name)
            for freed in self.schedule.done(name):
                assert self.schedule.state(freed) is NodeState.READY

    def fail(self) -> None:
        if self.chance.random() < 0.2 and (name := self.pick(self.running)):
            self.running.discard(name)
            for pruned in self.schedule.end(name, NodeState.FAILED):
                assert pruned not in self.done
                self.parked.discard(pruned)
                self.ended.add(pruned)
            self.ended.add(name)

    def park(self) -> None:
        if name := self.pick(self.running):
            self.running.discard(name)
            self.parked.add(name)
            self.schedule.park(name)

    def unpark(self) -> None:
        if name := self.pick(self.parked):
            self.parked.discard(name)
            self.schedule.unpark(name)
            assert self.schedule.state(name) is NodeState.READY

    def rewind(self) -> None:
        then = self.pick(self.running) if self.chance.random() < 0.2 else None
        name = self.pick(self.needs(then) & self.done) if then else None
        if then and name:
            self.running.discard(then)
            self.done.discard(name)
            self.schedule.rewind(name, then=then)
            assert self.schedule.state(then) is NodeState.WAITING


@settings(max_examples=examples(120, 300), deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_every_run_ends_with_every_node_accounted_for(graph: list[set[int]], seed: int) -> None:
    run = Run(graph, seed)
    moves = 0
    while not run.schedule.is_over:
        moves += 1
        assert moves < 5000
        run.chance.choice([run.take, run.finish, run.fail, run.park, run.unpark, run.rewind])()
    for index in range(len(graph)):
        state = run.schedule.state(f"n{index}")
        assert state in ENDED
        assert (state is NodeState.DONE) == (f"n{index}" in run.done)
        assert (state is NodeState.DONE) != (f"n{index}" in run.ended)
    assert not run.running
    assert not run.parked


@settings(max_examples=examples(40, 100), deadline=None)
@given(graphs())
def test_one_at_a_time_goes_in_an_order_that_respects_the_plan(graph: list[set[int]]) -> None:
    schedule = build(graph)
    order: list[str] = []
    while (name := schedule.next_ready()) is not None:
        order.append(name)
        schedule.done(name)
    assert order == [f"n{index}" for index in range(len(graph))]
