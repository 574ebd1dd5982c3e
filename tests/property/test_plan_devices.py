"""Several runs on one machine ask for devices, give them back and walk away in any order: nobody gets what is held."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.core.device import GIB, MemoryType, Needs, usable_bytes
from stoker.engine.device_gate import AttemptDevices, DeviceWait
from stoker.engine.ledger_gate import LedgerGate
from stoker.host.durable import remove_tree
from tests.unit.engine.device.test_device_ledger_gate import Machine
from tests.unit.engine.lab import card

TOTAL = 24 * GIB
USABLE = usable_bytes(TOTAL, MemoryType.DISCRETE)
SHAPES = (
    Needs(gpu=1),
    Needs(gpu=2),
    Needs(gpu=1, vram_gib=24.0),
    Needs(gpu=1, vram_gib=6.0, shares=True),
    Needs(gpu=1, vram_gib=14.0, shares=True),
    Needs(gpu=2, vram_gib=10.0, shares=True),
)
GATES = 3


class Runs(RuleBasedStateMachine):
    """The model is a list of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.machine = Machine(Path(self.folder), card("a", TOTAL), card("b", TOTAL))
        self.gates = [self.machine.gate() for _ in range(GATES)]
        self.held: list[tuple[LedgerGate, Needs, AttemptDevices]] = []
        self.waiting: set[tuple[int, Needs]] = set()

    @rule(number=st.integers(0, GATES - 1), needs=st.sampled_from(SHAPES))
    def ask(self, number: int, needs: Needs) -> None:
        gate = self.gates[number]
        answer = self.machine.ask(gate, needs)
        if isinstance(answer, AttemptDevices):
            self.held.append((gate, needs, answer))
            self.waiting.discard((number, needs))
        else:
            assert answer.why.startswith("waits")
            self.waiting.add((number, needs))

    @rule(place=st.integers(0, 100))
    def give_back(self, place: int) -> None:
        if self.held:
            gate, _, taken = self.held.pop(place % len(self.held))
            gate.give_back(taken)

    @rule(number=st.integers(0, GATES - 1), kept=st.sets(st.sampled_from(SHAPES)))
    def walk_away(self, number: int, kept: set[Needs]) -> None:
        self.gates[number].wait_only_for(kept)
        self.waiting = {(one, needs) for one, needs in self.waiting if one != number or needs in kept}

    @invariant()
    def nobody_has_what_another_has_to_himself(self) -> None:
        for uuid in ("a", "b"):
            on_it = [needs for _, needs, taken in self.held if uuid in taken.devices]
            if any(not needs.shares for needs in on_it):
                assert len(on_it) == 1
            assert sum(needs.vram_bytes for needs in on_it if needs.shares) <= USABLE

    @invariant()
    def everybody_has_what_he_asked_for(self) -> None:
        for _, needs, taken in self.held:
            assert len(set(taken.devices)) == needs.gpu

    def teardown(self) -> None:
        for gate, _, taken in self.held:
            gate.give_back(taken)
        # With everything given back, who waits gets it, one after the other, and nobody is forgotten.
        deadline_s = time.monotonic() + 30
        while self.waiting:
            assert time.monotonic() < deadline_s, self.waiting
            for number, needs in sorted(self.waiting, key=repr):
                answer = self.machine.ask(self.gates[number], needs)
                if not isinstance(answer, DeviceWait):
                    self.gates[number].give_back(answer)
                    self.waiting.discard((number, needs))
            time.sleep(0.001)
        for gate in self.gates:
            gate.close()
        assert self.machine.owners == []
        remove_tree(self.folder)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
