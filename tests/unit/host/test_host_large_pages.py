from __future__ import annotations

import mmap

from stoker.host import linux


def test_moving_our_memory_changes_nothing_in_it():
    with mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        region[:] = bytes(range(256)) * (len(region) // 256)
        steps = list(linux.moves())
        assert region[:] == bytes(range(256)) * (len(region) // 256)
    assert len(steps) >= 1
    assert set(steps) <= {True, False}
