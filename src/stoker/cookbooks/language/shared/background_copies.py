"""Copies of adapters from the device, made beside the training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from stoker.cookbooks.language.compute.banks import Pairs


class BackgroundCopies:
    """Copies adapters in a thread, one after another. Each takes memory of the device until it is copied."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copies")
        self._last: Future[Pairs] | None = None

    def start(self, collect: Callable[[], Callable[[], Pairs]]) -> Callable[[], Pairs]:
        """Collect an adapter on the device now, and copy it soon; return what waits for the copy."""
        try:
            copies = collect()
        except torch.OutOfMemoryError:
            if not self.wait():
                raise
            copies = collect()
        self._last = self._thread.submit(copies)
        return self._last.result

    def wait(self) -> bool:
        """Wait until no copy takes memory of the device; return False if none did."""
        last, self._last = self._last, None
        if last is None or last.done():
            return False
        # One after another: the last one ends last. Its error is raised to whoever asks for the copy.
        last.exception()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return True

    def close(self) -> None:
        """Wait for all copies."""
        self._thread.shutdown()
