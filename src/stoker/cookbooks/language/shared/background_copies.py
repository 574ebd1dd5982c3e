"""Copies of adapters from the device, made beside the training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from stoker.cookbooks.language.compute.banks import Pairs


class BackgroundCopies:
    """Copies adapters in a thread, one after another. Each takes memory of the device until it is copied."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copies")
        self._copying: list[Future[Pairs]] = []

    def start(self, collect: Callable[[], Callable[[], Pairs]]) -> Callable[[], Pairs]:
        """Collect an adapter on the device now, and copy it soon; return what waits for the copy."""
        try:
            copies = collect()
        except torch.OutOfMemoryError:
            wait(self._copying)
            torch.cuda.empty_cache()
            copies = collect()
        copying = self._thread.submit(copies)
        self._copying = [*(one for one in self._copying if not one.done()), copying]
        return copying.result

    def close(self) -> None:
        """Wait for all copies."""
        self._thread.shutdown()
