"""What does making an environment from a lock cost beside `uv sync` by hand, and finding it again?

Forty packages, 230 MB, from an index on this machine: with nothing in uv's cache, which is a machine's first build, and
with everything in it. Both sides use the same uv and the same interpreter.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import os
import random
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
from harness import Benchmark, Case, Figure, Row, Run, Side
from peers import Installed

PACKAGES = 40
FILES = 150
FILE_BYTES = 38_000
ROUNDS = 5
MOST = 1.2
LOOK_S = 0.05


def main() -> int:
    bench = harness.start("environments", __doc__.splitlines()[0])
    ours = bench.peer("stoker")
    runs: dict[str, harness.Runs] = {}
    looks: list[Run] = []
    if isinstance(ours, Installed):
        count = 1 if bench.quick else PACKAGES
        with _index(bench.home("index"), count) as url:
            project = _project(bench, ours, url, count)
            for cache in ("cold", "warm"):
                sides = [
                    Side(name="uv", once=_by_hand(bench, ours, project, cache)),
                    Side(name="stoker", once=_by_us(bench, ours, project, cache, count)),
                ]
                if cache == "warm":
                    for side in sides:
                        side.once()
                runs[cache] = bench.in_turns(sides, rounds=ROUNDS)
            home = bench.bench / "scratch" / bench.name / "ours"
            looks = [_side(ours, project, home, "look", bench, count) for _ in range(1 if bench.quick else ROUNDS)]
    for cache, words in (("cold", "with nothing in uv's cache"), ("warm", "with everything in uv's cache")):
        goal = MOST if cache == "cold" else None
        bench.compare(f"a lock's environment, {words}", "uv sync", runs.get(cache, {}), theirs="uv", at_most=goal)
    bench.rows.append(
        Row(
            question="an environment that is there",
            against="50 ms",
            ours=harness.seconds_of(looks) if looks else None,
            theirs=Figure(best=LOOK_S, median=LOOK_S, runs=1),
            at_most=1.0,
            why_missing=bench.missing("stoker"),
        )
    )
    return bench.finish()


def _by_hand(bench: Benchmark, peer: Installed, project: Path, cache: str) -> Callable[[], Run]:
    def once() -> Run:
        place = bench.home("by-hand") / "venv"
        around = {"UV_PROJECT_ENVIRONMENT": str(place), "UV_CACHE_DIR": str(_cache(bench, "by-hand", cache))}
        words = ["sync", "--quiet", "--frozen", "--no-install-project", "--python", _python()]
        return harness.run_command([_uv(peer), *words], folder=project, environment={**_plain(), **around})

    return once


def _by_us(bench: Benchmark, peer: Installed, project: Path, cache: str, count: int) -> Callable[[], Run]:
    def once() -> Run:
        _cache(bench, "ours", cache)
        return _side(peer, project, bench.home("ours"), "build", bench, count)

    return once


def _side(peer: Installed, project: Path, home: Path, way: str, bench: Benchmark, count: int) -> Run:
    around = {**_plain(), "ENV_PROJECT": str(project), "UV_CACHE_DIR": str(_cache(bench, "ours", "warm"))}
    case = Case(count=count, way=way).arguments(home)
    return harness.run_side(peer, "stoker_environment.py", case, executed=count, environment=around)


def _cache(bench: Benchmark, whose: str, cache: str) -> Path:
    folder = bench.bench / "scratch" / bench.name / f"cache-{whose}"
    if cache == "cold":
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def _plain() -> dict[str, str]:
    """What would make the two sides differ: other indexes, and other interpreters before the one that both use."""
    return {"PIP_FIND_LINKS": "", "PIP_INDEX_URL": "", "UV_INDEX": "", "PATH": f"{Path(_python()).parent}:{os.defpath}"}


def _python() -> str:
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


def _uv(peer: Installed) -> Path:
    return peer.python.parent / "uv"


def _project(bench: Benchmark, peer: Installed, url: str, count: int) -> Path:
    project = bench.home("project")
    names = ", ".join(f'"pkg{number:02d}"' for number in range(count))
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "study"\nversion = "0"\nrequires-python = ">=3.9"\ndependencies = [{names}]\n'
        f'[[tool.uv.index]]\nurl = "{url}/simple"\ndefault = true\n'
    )
    around = {**_plain(), "UV_CACHE_DIR": str(bench.home("cache-locking"))}
    harness.run_command([_uv(peer), "lock", "--quiet", "--python", _python()], folder=project, environment=around)
    return project


@contextmanager
def _index(folder: Path, count: int) -> Iterator[str]:
    """Serve packages of random bytes, as a package index does."""
    for number in range(count):
        _package(folder, f"pkg{number:02d}")
    serve = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _package(folder: Path, name: str) -> None:
    info = f"{name}-1.0.dist-info"
    some = random.Random(name)
    files = {f"{name}/part{number}.bin": some.randbytes(FILE_BYTES) for number in range(FILES)}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    (folder / "files").mkdir(exist_ok=True)
    wheel = folder / "files" / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    page = folder / "simple" / name
    page.mkdir(parents=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (page / "index.html").write_text(f'<a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a>')


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing, and lets clients leave as they like: uv reads the end of a wheel first."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_words: Any) -> None:
        return

    def copyfile(self, source: Any, outputfile: Any) -> None:
        try:
            super().copyfile(source, outputfile)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


if __name__ == "__main__":
    sys.exit(main())
