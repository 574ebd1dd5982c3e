"""A company's allocator stops at what the shared process was given of its device."""

from __future__ import annotations

from tests.later import imported_later

with imported_later():
    from stoker.cookbooks.language.shared.device_memory import AllocatorLimit


GIB = 1024**3


class FakeAllocator:
    """A device of 100 GiB, of which a process takes one before it has a tensor."""

    total_bytes = 100 * GIB
    context_bytes = GIB

    def __init__(self) -> None:
        self.held_bytes = 0
        self.stops: list[float] = []

    def reserved_bytes(self) -> int:
        return self.held_bytes

    def stop_at(self, fraction: float) -> None:
        self.stops.append(round(fraction, 4))


def test_it_stops_at_what_was_given_less_what_the_process_takes_beside_it() -> None:
    allocator = FakeAllocator()
    cap = AllocatorLimit(allocator)
    for ceiling_gib in (11, 11, 21, 1000, 0):
        cap.follow(ceiling_gib * GIB)
    assert allocator.stops == [0.1, 0.2, 1.0, 0.0]


def test_when_members_leave_it_may_keep_what_it_holds_and_take_no_more() -> None:
    allocator = FakeAllocator()
    cap = AllocatorLimit(allocator)
    cap.follow(41 * GIB)
    allocator.held_bytes = 30 * GIB
    cap.follow(21 * GIB)
    assert allocator.stops == [0.4, 0.3]


def test_a_device_of_its_own_is_never_limited_and_one_that_becomes_so_is_freed() -> None:
    allocator = FakeAllocator()
    cap = AllocatorLimit(allocator)
    cap.follow(None)
    assert allocator.stops == []
    cap.follow(11 * GIB)
    cap.follow(None)
    assert allocator.stops == [0.1, 1.0]


def test_on_the_cpu_there_is_nothing_to_stop() -> None:
    AllocatorLimit(None).follow(GIB)
