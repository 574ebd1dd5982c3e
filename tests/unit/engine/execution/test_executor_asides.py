from __future__ import annotations

from stoker.core.digests import Digest
from stoker.engine.execution.dispatch import LONGEST_POLL_S, SHORTEST_POLL_S, DeferredNodes

KEY = Digest("0" * 64)


def test_a_node_comes_back_when_its_moment_has_come_and_once() -> None:
    asides = DeferredNodes()
    asides.back_off("a", 5.0, now_s=100.0)
    assert asides.due(104.9) == []
    assert asides.due(105.0) == ["a"]
    assert asides.due(200.0) == []


def test_polls_come_further_and_further_apart() -> None:
    asides = DeferredNodes()
    now_s, pauses = 0.0, []
    assert asides.poll_later("a", now_s)
    for _ in range(30):
        pause_s = asides.nap_s(now_s, 1e9)
        pauses.append(pause_s)
        now_s += pause_s
        assert asides.due(now_s + 1e-9) == ["a"]
        assert not asides.poll_later("a", now_s)
    assert pauses[0] == SHORTEST_POLL_S
    assert max(pauses) <= LONGEST_POLL_S + 1e-6
    rounded = [round(pause_s, 6) for pause_s in pauses]
    assert rounded == sorted(rounded)


def test_a_node_that_goes_on_is_forgotten() -> None:
    asides = DeferredNodes()
    asides.poll_later("a", 0.0)
    asides.forget("a")
    assert asides.due(1e9) == []
    assert asides.poll_later("a", 0.0)


def test_the_nap_ends_with_the_first_moment() -> None:
    asides = DeferredNodes()
    assert asides.nap_s(0.0, 0.25) == 0.25
    asides.back_off("a", 0.1, now_s=0.0)
    assert asides.nap_s(0.0, 0.25) == 0.1
    assert asides.nap_s(5.0, 0.25) == 0.0


def test_of_twins_one_flies_and_the_others_wait_for_its_landing() -> None:
    asides = DeferredNodes()
    assert asides.take_off(KEY, "a")
    assert not asides.take_off(KEY, "b")
    assert not asides.take_off(KEY, "c")
    assert asides.land(KEY) == ["b", "c"]
    assert asides.land(KEY) == []
    assert asides.take_off(KEY, "b")


def test_everybody_is_given_back_when_the_run_stops() -> None:
    asides = DeferredNodes()
    asides.back_off("a", 5.0, now_s=0.0)
    asides.take_off(KEY, "b")
    asides.take_off(KEY, "c")
    assert asides.release_all() == ["a", "c"]
    assert asides.release_all() == []
