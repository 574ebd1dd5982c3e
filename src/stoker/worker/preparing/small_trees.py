"""A tree of which little is missing, brought at once: a changed line of code is not worth a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from stoker.model.clock import Clock
from stoker.model.errors import Cancelled, Refused, StokerError
from stoker.model.frozen import frozen
from stoker.store.download.stop import Stop
from stoker.store.local import LocalStore
from stoker.worker.shipping.origins import Origins
from stoker.worker.shipping.tree_receiving import Outlook, receive_tree

MOST_BYTES = 4 << 20
MOST_FILES = 200
_LOOK_EVERY_S = 0.1


@frozen
class SmallTrees:
    """Brings them."""

    store: Callable[[], LocalStore]
    open_origins: Callable[[], AbstractContextManager[Origins]]
    """Opens the ways to whoever has trees."""
    clock: Clock

    def bring(self, tree: str, stop: threading.Event) -> bool:
        """Have a tree here, if little of it is missing and nothing is in the way; says whether it is."""
        inner, over = Stop(), threading.Event()
        watch = threading.Thread(target=_pass_on, args=(stop, over, inner), name="stoker-small-tree", daemon=True)
        watch.start()
        try:
            with self.open_origins() as origins:
                receive_tree(origins, tree, self.store(), stop=inner, clock=self.clock, on_outlook=_refuse_much)
        except StokerError:
            # Whoever has more time finds out what is wrong, and tells it.
            return False
        finally:
            over.set()
            watch.join()
        return True


def _refuse_much(outlook: Outlook) -> None:
    if outlook.missing_bytes > MOST_BYTES or outlook.missing_files > MOST_FILES:
        raise Refused("too much of it is missing")


def _pass_on(stop: threading.Event, over: threading.Event, inner: Stop) -> None:
    while not over.wait(_LOOK_EVERY_S):
        if stop.is_set():
            inner.ask(Cancelled("it is no longer wanted"))
            return
