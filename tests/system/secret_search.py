"""Looks for secrets: in the words and variables of processes while they run, and in files.

with ProcessSamples(cluster.pid, tickets=shared) as samples:
    …
assert samples.showing(samples.keys) == []
assert files_with(samples.keys, [home, spool], but={"operator.token"}) == []
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_EVERY_S = 0.05


class ProcessSamples:
    """What all processes of a namespace show to others, and the keys of the tickets that lie in a folder meanwhile."""

    def __init__(self, pid: int, *, tickets: Path) -> None:
        """`pid` is a process of the namespace; `tickets` the folder of fleets' folders."""
        self._space = os.readlink(f"/proc/{pid}/ns/pid")
        self._tickets = tickets
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-samples", daemon=True)
        self._shown: set[bytes] = set()
        self.keys: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def showing(self, texts: Iterable[str]) -> list[str]:
        """Return the words or variables of processes that had one of these texts in them."""
        found = (one for one in self._shown if any(text.encode() in one for text in texts))
        return [one.replace(b"\0", b" ").decode(errors="replace") for one in found]

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            for path in self._tickets.glob("*/*.ticket"):
                # A worker may have used and removed it.
                with suppress(OSError):
                    self.keys.add(json.loads(path.read_text())["key"])
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/ns/pid") == self._space:
                        self._shown.update(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def files_with(texts: Collection[str], folders: Iterable[Path], *, but: Collection[str] = ()) -> list[str]:
    """Return the files below folders that have one of these texts in them. `but` are names of files, or suffixes."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            # What is not a plain file, or goes meanwhile, keeps nothing.
            with suppress(OSError):
                if path.name not in but and path.suffix not in but and path.is_file() and not path.is_symlink():
                    data = path.read_bytes()
                    found += [str(path)] if any(text.encode() in data for text in texts) else []
    return found
