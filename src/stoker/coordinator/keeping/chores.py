"""What a coordinator tidies up by itself: uploads that nobody went on with. In a thread of its own, now and then.

Only what nothing can name: results, checkpoints and logs stay until somebody prunes.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from stoker.coordinator.keeping.pruning import UPLOAD_GRACE_S
from stoker.model.errors import StokerError
from stoker.store.objects.seam import ObjectStore

EVERY_S = 3600.0


class Chores:
    """Tidies up while a with-block lasts: at once, and then every hour."""

    def __init__(self, objects: ObjectStore, *, every_s: float = EVERY_S) -> None:
        self._objects = objects
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-chores", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            # A disk in trouble: the next time finds what is left.
            with suppress(StokerError):
                self._objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)
            if self._over.wait(self._every_s):
                return
