"""How often Python searches for garbage while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from stoker.engine import plan
from stoker.engine.plan import searched_seldom


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = gc.get_threshold()
    # A run that another test left under way must not count here.
    monkeypatch.setattr(plan, "_open_blocks", 0)
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield
    gc.set_threshold(*before)


def test_garbage_is_searched_for_seldom_during_a_block_and_as_before_after_it() -> None:
    with searched_seldom():
        assert gc.get_threshold() == (100_000, 10, 10)
        assert gc.isenabled()
    assert gc.get_threshold() == (700, 10, 10)


def test_it_is_as_before_after_a_block_that_fails() -> None:
    with pytest.raises(ValueError, match="no"), searched_seldom():
        raise ValueError("no")
    assert gc.get_threshold() == (700, 10, 10)


def test_blocks_that_overlap_end_with_the_last_of_them() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(searched_seldom())
    second.enter_context(searched_seldom())
    first.close()
    assert gc.get_threshold()[0] == 100_000
    second.close()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 500_000])
def test_who_searches_never_or_less_often_already_is_left_alone(own: int) -> None:
    gc.set_threshold(own, 10, 10)
    with searched_seldom():
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold()[0] == own
