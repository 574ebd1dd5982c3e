"""The test's side of `download_child`: orders out, process numbers and exit codes back."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from stoker.core.digests import digest_bytes
from tests.servers.faulty import FaultyServer, Version

ROOT = Path(__file__).parents[2]
ONCE = {"attempts": 1, "longest_pause_s": 0.0}
"""Give up when an attempt brings nothing new; the one after an attempt that brought something follows at once."""


class Downloads:
    """Downloads into one folder, each in a process of its own; one of them runs at a time."""

    def __init__(self, server: FaultyServer, folder: Path, name: str = "model.bin") -> None:
        self.server = server
        self.folder = folder
        self.name = name
        self.pid = 0
        folder.mkdir(exist_ok=True)
        self._parent = _idle.pop() if _idle else _Parent()

    def into(self, folder: Path) -> Self:
        """Download into another folder from now on."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        return self

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def partial(self) -> Path:
        return self.folder / f"{self.name}.part"

    def partial_bytes(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def start(self, version: Version | None = None, **order: object) -> None:
        """Begin a download; with a version, exactly that one is wanted."""
        said = {"url": self.server.url, "folder": str(self.folder), "name": self.name, **order}
        if version is not None:
            said["sha256"] = digest_bytes(version.data)
        self.pid = int(self._parent.ask(json.dumps(said)))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end and give its exit code, or minus its signal."""
        code = int(self._parent.ask("wait"))
        self.pid = 0
        return code

    def run(self, version: Version | None = None, **order: object) -> int:
        self.start(version, **order)
        return self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.pid:
            self.kill()
            self.end()
        _idle.append(self._parent)


class _Parent:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.download_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        atexit.register(self._close)

    def ask(self, text: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(20)


_idle: list[_Parent] = []
"""Kept from test to test: an interpreter with everything loaded takes longer to start than most tests to run."""
