"""What a job wants of the hub, brought before it runs: fetched where it is not here, verified in any case.

A recipe says what it lacks (`Faults.lacks`), small files first, so that what they refuse is refused before the large
ones come.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from stoker.faces.cli.call import Call
from stoker.model.errors import Faults
from stoker.model.faults import Lack
from stoker.worker.ordering import Order


class Bringing:
    """Brings what one command lacks, each thing once."""

    def __init__(self, call: Call, *, is_dry: bool) -> None:
        self._call = call
        self._is_dry = is_dry
        self._came: Counter[str] = Counter()
        """Bytes that came over the network, by what was typed."""

    def order(self, take: Callable[[], Order]) -> Order | None:
        """Take an order; while nothing is wrong but what the hub may have, that is fetched, and it is taken again.

        Of a dry run nothing is fetched: what would be is told, and there is no order. Raises what `take` raises if we
        may not ask (offline) or if what came does not help, and whatever goes wrong in fetching.
        """
        asked: set[Lack] = set()
        while True:
            try:
                return take()
            except Faults as error:
                if not error.lacks or asked >= set(error.lacks) or self._call.parts.hub_settings("").offline:
                    raise
                asked |= set(error.lacks)
                self._bring(error)
            if self._is_dry:
                return None

    def verify(self, order: Order) -> None:
        """Hold the files that an order reads from the hub's cache against their digests, and say what was fetched.

        What is damaged is set aside and fetched again. Raises `StokerError` if that can't be.
        """
        words = self._words_of(order)
        if not words:
            return
        from stoker.faces.cli.fetch.job_files import verify

        paths = {path for node in order.plan.nodes for path in node.stage.args.paths_in(node.args)}
        for text, argument in words.items():
            verify(self._call, text, argument, paths, came_bytes=self._came[text])

    def _bring(self, error: Faults) -> None:
        from stoker.faces.cli.fetch.job_files import fetch, foretell

        for lack in error.lacks:
            if self._is_dry:
                foretell(self._call, lack, error)
            else:
                self._came[lack.repo] += fetch(self._call, lack, error)

    def _words_of(self, order: Order) -> dict[str, str]:
        """Give what may name repositories among the arguments of an order's trials, each with the argument's name."""
        if not order.trials or order.program is not None:
            return {}
        brings = self._call.parts.catalogue.load(order.spec.recipe).brings
        texts = ((trial.args.get(name), name) for trial in order.trials for name in brings)
        named = {text: name for text, name in texts if isinstance(text, str) and "/" in text}
        return {text: name for text, name in named.items() if not os.path.exists(text)}
