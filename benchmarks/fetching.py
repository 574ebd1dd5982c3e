"""What the questions about downloads share: a server, `stoker fetch`, and other programs that fetch the same bytes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
import nginx
from harness import Benchmark, Case, Row, Run, Side
from nginx import Served, Server, Shelf
from peers import Installed
from terminal import terminal

Words = Sequence[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A benchmark with a server beside it."""

    bench: Benchmark
    stoker: Installed
    server: Server

    def fetch(self, *words: str | Path) -> Words:
        """`stoker fetch`, with these words."""
        return [self.stoker.program("stoker"), "fetch", *words]

    def command(
        self,
        name: str,
        words: Callable[[Path], Words],
        *,
        brings: int,
        rounds: int | None = None,
        on_terminal: bool = False,
    ) -> Side:
        """A program that fetches into an empty folder, timed from start to exit; it must have brought so many bytes.

        The folder is its working folder and the home of its caches, so every run starts without any.
        """

        def once() -> Run:
            home = self.bench.home(name)
            with terminal() if on_terminal else contextlib.nullcontext(subprocess.DEVNULL) as output:
                run = harness.run_command(words(home), folder=home, environment=self._settings(home), output=output)
            held = sum(path.stat().st_size for path in home.rglob("*") if path.is_file() and not path.is_symlink())
            if held < brings:
                raise RuntimeError(f"{name} brought {held} bytes where {brings} were due")
            shutil.rmtree(home)
            return run

        return Side(name=name, once=once, rounds=rounds)

    def engine(self, name: str, file: Served, *, way: str, origin: str = "") -> Side:
        """Stoker's transfer engine in process, from after the imports."""
        told = {
            "FETCH_URL": self.server.address(file, origin=origin),
            "FETCH_SHA256": file.sha256,
            "FETCH_CERTIFICATE": str(self.server.certificate),
        }
        return self.script(name, "stoker_fetch.py", file.size_bytes, way=way, environment=told)

    def script(
        self, name: str, script: str, count: int, *, way: str = "", environment: Mapping[str, str] | None = None
    ) -> Side:
        """A script of `sides/` in Stoker's interpreter, which times itself and says that it did so many bytes."""

        def once() -> Run:
            arguments = Case(count=count, way=way).arguments(self.bench.home(name))
            return harness.run_side(self.stoker, script, arguments, executed=count, environment=environment)

        return Side(name=name, once=once)

    def _settings(self, home: Path) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.server.hub,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "SSL_CERT_FILE": str(self.server.certificate),
            "STOKER_HOME": str(home / "stoker"),
        }


@contextmanager
def lab(bench: Benchmark, fill: Callable[[Shelf], None]) -> Iterator[Lab | None]:
    """Put files on a shelf and serve them; nothing, with a row that says why, where that can't be had."""
    stoker = bench.peer("stoker")
    why = bench.missing("stoker") or nginx.why_not()
    if why or not isinstance(stoker, Installed):
        bench.rows.append(Row(question=bench.asks, against="", ours=None, theirs=None, at_most=1.0, why_missing=why))
        yield None
        return
    bench.versions["nginx"] = nginx.version()
    with nginx.shelf(bench.bench) as shelf:
        bench.say("making the files")
        fill(shelf)
        with nginx.serving(shelf) as server:
            yield Lab(bench=bench, stoker=stoker, server=server)
