"""Two network namespaces with a link between them that can be cut and joined. Nothing of it is in the machine's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

HERE, THERE = "10.99.7.1", "10.99.7.2"
_LINK = "link0"


class CutLink:
    """A link between `here` and `there`."""

    def __init__(self, name: str) -> None:
        self._here, self._there = f"{name}-here", f"{name}-there"

    @property
    def here(self) -> tuple[str, ...]:
        """What to put before a command so that it runs on this side."""
        return ("ip", "netns", "exec", self._here)

    @property
    def there(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._there)

    def make(self) -> None:
        for side in (self._here, self._there):
            ip("netns", "add", side)
            ip("-n", side, "link", "set", "lo", "up")
        ip("-n", self._here, "link", "add", _LINK, "type", "veth", "peer", "name", _LINK, "netns", self._there)
        for side, address in ((self._here, HERE), (self._there, THERE)):
            ip("-n", side, "addr", "add", f"{address}/24", "dev", _LINK)
        self.join()

    def cut(self) -> None:
        """Let everything that is sent vanish; nobody is told."""
        ip("-n", self._here, "link", "set", _LINK, "down")

    def join(self) -> None:
        for side in (self._here, self._there):
            ip("-n", side, "link", "set", _LINK, "up")

    def remove(self) -> None:
        for side in (self._here, self._there):
            subprocess.run(["ip", "netns", "delete", side], capture_output=True, check=False)


@contextmanager
def cut_link() -> Iterator[CutLink]:
    """Make such a link for a while; skips where that is not permitted."""
    link = CutLink(f"stoker{os.getpid()}")
    try:
        try:
            link.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces can't be made here: {error}")
        yield link
    finally:
        link.remove()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)
