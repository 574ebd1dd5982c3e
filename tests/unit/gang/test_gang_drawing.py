from __future__ import annotations

import random
import sys
import types

from numpy.random import mtrand

from stoker.gang.rank import draw_anew


def test_copies_of_one_process_draw_different_numbers():
    shared = mtrand._rand
    before = shared.get_state()
    drawn = set()
    for _ in range(3):
        shared.set_state(before)
        draw_anew()
        drawn.add(float(shared.rand()))
    assert len(drawn) == 3


def test_python_s_own_generator_is_left_to_itself():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    draw_anew()
    assert random.random() == expected


def test_what_only_has_torch_s_name_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    draw_anew()
