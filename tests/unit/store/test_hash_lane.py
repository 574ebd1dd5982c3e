"""Hashing beside the work."""

from __future__ import annotations

import random
import threading
from hashlib import sha256

import pytest

from stoker.store.trees import HashLane
from tests.unit.host.real_processes import wait_until


@pytest.mark.parametrize("sizes", [[], [0], [1] * 100, [100_000] * 50, [10, 200_000, 10, 10, 300_000, 5]])
def test_blocks_arrive_in_order_whatever_their_size(sizes: list[int]) -> None:
    numbers = random.Random(1)
    blocks = [numbers.randbytes(size) for size in sizes]
    digest = sha256()
    with HashLane() as lane:
        for block in blocks:
            lane.feed(digest, block)
        lane.wait()
        assert digest.hexdigest() == sha256(b"".join(blocks)).hexdigest()


def test_one_lane_feeds_several_hashes() -> None:
    digests = [sha256() for _ in range(5)]
    blocks = [random.Random(number).randbytes(70_000) for number in range(40)]
    with HashLane() as lane:
        for number, block in enumerate(blocks):
            lane.feed(digests[number % 5], block)
        lane.wait()
    expected = [sha256(b"".join(blocks[number::5])).hexdigest() for number in range(5)]
    assert [digest.hexdigest() for digest in digests] == expected


def test_a_lane_holds_only_so_much() -> None:
    gate = threading.Event()

    class Slow:
        taken = 0

        def update(self, data: bytes, /) -> None:
            gate.wait(10)
            self.taken += 1

    slow = Slow()
    given = []
    with HashLane() as lane:
        feeder = threading.Thread(
            target=lambda: [(lane.feed(slow, bytes(100_000)), given.append(1)) for _ in range(50)]
        )
        feeder.start()
        wait_until(lambda: bool(given))
        feeder.join(0.2)
        assert 0 < len(given) < 15
        gate.set()
        feeder.join(10)
        lane.wait()
    assert slow.taken == 50


def test_a_lane_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    lane = HashLane()
    assert set(threading.enumerate()) <= before
    lane.feed(sha256(), bytes(100_000))
    lane.close()
    lane.close()
    assert set(threading.enumerate()) <= before
