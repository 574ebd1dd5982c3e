"""Best weights that are copied beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.shared.background_copies import BackgroundCopies

FOUND: dict[str, Any] = {"model.layers.0.mlp.up_proj": ()}


@pytest.fixture
def copies() -> Iterator[BackgroundCopies]:
    made = BackgroundCopies()
    yield made
    made.close()


def held_until(event: threading.Event) -> Callable[[], Any]:
    def copied() -> Any:
        event.wait(30)
        return FOUND

    return copied


def test_a_copy_is_made_beside_and_waited_for_by_whoever_needs_it(copies: BackgroundCopies) -> None:
    may_end = threading.Event()
    result = copies.start(lambda: held_until(may_end))
    may_end.set()
    assert result() is FOUND
    assert not copies.wait()


def test_where_memory_is_short_earlier_copies_are_waited_for_and_it_is_tried_again(
    copies: BackgroundCopies,
) -> None:
    may_end = threading.Event()
    first = copies.start(lambda: held_until(may_end))
    tries: list[bool] = []

    def collect() -> Callable[[], Any]:
        tries.append(may_end.is_set())
        if len(tries) == 1:
            may_end.set()
            raise torch.OutOfMemoryError("no memory")
        return dict

    assert copies.start(collect)() == {}
    assert first() is FOUND
    assert len(tries) == 2


def test_where_nothing_can_be_waited_for_the_error_is_that_of_the_device(copies: BackgroundCopies) -> None:
    def collect() -> Callable[[], Any]:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        copies.start(collect)


def test_a_copy_that_fails_fails_whoever_asks_for_it_and_no_other(copies: BackgroundCopies) -> None:
    def broken() -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    bad, good = copies.start(lambda: broken), copies.start(lambda: dict)
    copies.wait()
    assert good() == {}
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        bad()
