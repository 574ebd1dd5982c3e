"""What a coordinator tidies up by itself: uploads that nobody went on with. In a thread of its own, now and then.

Only what nothing can name: results, checkpoints and logs stay until somebody prunes.
"""

from __future__ import annotations

from stoker.coordinator.alongside import Alongside
from stoker.coordinator.keeping.pruning import UPLOAD_GRACE_S
from stoker.store.objects.seam import ObjectStore

EVERY_S = 3600.0


class Chores(Alongside):
    """Tidies up while a with-block lasts: at once, and then every hour."""

    def __init__(self, objects: ObjectStore, *, every_s: float = EVERY_S) -> None:
        super().__init__("chores")
        self._objects = objects
        self._every_s = every_s

    def _run(self) -> None:
        while True:
            # A disk in trouble: the next time finds what is left.
            with self._one_try():
                self._objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)
            if self._over.wait(self._every_s):
                return
