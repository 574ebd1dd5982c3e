"""The real coordinator, through the command line and the assembly, with one change: it kills itself at a point.

python coordinator_child.py before_commit 7 serve …      at the eighth visit of that point
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from stoker.__main__ import main
from stoker.coordinator.queue import writer


class Death:
    """Comes at the n-th visit of a point."""

    def __init__(self, point: str, visits: int) -> None:
        self._point, self._left = point, visits

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    death = Death(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    writer.Queue = partial(writer.Queue, faults=death)  # type: ignore[misc,assignment]
    sys.exit(main())
