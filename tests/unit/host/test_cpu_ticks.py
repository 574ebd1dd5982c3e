"""Whether a group of processes computes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from stoker.host.processes import group_cpu_ticks


def test_a_group_that_computes_uses_ticks_and_one_that_is_gone_has_none():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        before, until_s = group_cpu_ticks(busy.pid), time.monotonic() + 20
        assert before is not None
        while (group_cpu_ticks(busy.pid) or 0) <= before + 2:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        busy.kill()
        busy.wait()
    assert group_cpu_ticks(busy.pid) is None
    assert group_cpu_ticks(os.getpgrp()) is not None
