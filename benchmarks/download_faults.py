"""When a server, a network, a disk or a user misbehaves, who saves a wrong file and says that all is well?

One file of 24 MiB from a server of our own, again and again, by every program; each in an empty folder, started a
second time where the first one failed, as its user would. The table says how each case ended. A wrong file with exit
0 is the one thing that must not happen; where nothing but a digest can tell, only those that know one are to blame.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_cases
import fetchers
import harness
from fault_cases import CASES, Case, Scene
from fetchers import Fetcher, Order
from harness import Benchmark, Figure, Row

from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, FaultyServer, Habit, Version, well

SMALL_DISK = "size=16m"
TOKEN = "not-for-others"  # noqa: S105 - it opens nothing


def main() -> int:
    bench = harness.start("download_faults", __doc__.splitlines()[0])
    # A shell starts what runs in the background with Ctrl-C ignored, and what we start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    scene = fault_cases.scene()
    found = fetchers.installed(bench)
    cases = CASES[:1] if bench.quick else CASES
    bench.verdicts = [["", *(one.name for one in found)]]
    for case in cases:
        bench.verdicts.append([case.name, *(_under(bench, case, scene, one) for one in found)])
    if bench.quick:
        _count(bench)
        return bench.finish()
    for name, number in {"Ctrl-C at 5/8": signal.SIGINT, "kill -9 at 5/8": signal.SIGKILL}.items():
        bench.verdicts.append([name, *(_stopped(bench, name, number, scene, one) for one in found)])
    bench.verdicts.append(["a disk of 16 MiB", *(_on_small_disk(bench, scene, one) for one in found)])
    bench.verdicts.append(["redirect to another host: the token", *(_with_token(bench, scene, one) for one in found)])
    _count(bench)
    return bench.finish()


def _under(bench: Benchmark, case: Case, scene: Scene, fetcher: Fetcher) -> str:
    with _server(scene, case.habit(scene)) as server:
        order = _order(bench, server, scene, fetcher)
        return _told(bench, case.name, fetcher, _run_twice(fetcher, order, scene))


def _run_twice(fetcher: Fetcher, order: Order, scene: Scene) -> str:
    first = fetcher.run(order)
    if first == 0:
        return _judged(first, fetcher.path(order), scene)
    again = _judged(fetcher.run(order), fetcher.path(order), scene)
    if first is None:
        return f"hangs; started again: {again}"
    return "ok, started twice" if again == "ok" else again


def _stopped(bench: Benchmark, name: str, number: signal.Signals, scene: Scene, fetcher: Fetcher) -> str:
    """Stop it on its way, and look whether the next run goes on where the first one was."""
    reached = threading.Event()
    with _server(scene, bad.stalling(fault_cases.BROKEN_AT, reached)) as server:
        order = _order(bench, server, scene, fetcher)
        stopped = fetcher.stopped_by(number, order, lambda: reached.wait(fetchers.LONGEST_S))
        server.become(_hub(well))
        verdict = _judged(fetcher.run(order), fetcher.path(order), scene)
        resumed = any(asked.first_byte for asked in server.gets())
        if verdict == "ok":
            verdict = "ok, goes on" if resumed else "ok, all over again"
        left = " (stopped with exit 0)" if stopped == 0 else ""
        return _told(bench, name, fetcher, verdict + left)


def _on_small_disk(bench: Benchmark, scene: Scene, fetcher: Fetcher) -> str:
    with _server(scene, well) as server:
        disk = bench.home(f"disk {fetcher.name}")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL_DISK, "tmpfs", str(disk)], check=False)
        if mounted.returncode:
            return "not measured: mounting is not permitted"
        try:
            (disk / "out").mkdir()
            order = Order(origin=server.origin, folder=disk / "out", sha256=fetchers.sha256_of(scene.one.data))
            return _told(bench, "small disk", fetcher, _judged(fetcher.run(order), fetcher.path(order), scene))
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _with_token(bench: Benchmark, scene: Scene, fetcher: Fetcher) -> str:
    """Redirect to the same file on another host (another name of this machine), and see what is sent there."""
    with _server(scene, well) as other, _server(scene, well) as server:
        elsewhere = f"http://localhost:{other.port}{fetchers.TARGET}"

        def redirecting(asked: Asked, version: Version) -> Answer:
            answer = bad.redirected(elsewhere)(asked, version)
            answer.fields += list(version.extra)
            return answer

        server.become(_hub(redirecting))
        order = _order(bench, server, scene, fetcher, token=TOKEN)
        verdict = _judged(fetcher.run(order), fetcher.path(order), scene)
        leaks = any(TOKEN in (asked.field("Authorization") or "") for asked in other.asked)
        return _told(bench, "token", fetcher, f"{verdict}, TOKEN SENT" if leaks else f"{verdict}, kept")


@contextmanager
def _server(scene: Scene, habit: Habit) -> Iterator[FaultyServer]:
    with FaultyServer(habit=_hub(habit)) as server:
        server.versions[fetchers.TARGET] = scene.one
        server.versions[fetchers.TARGET.replace("/main/", f"/{fetchers.COMMIT}/")] = scene.one
        server.versions |= fault_cases.hub_pages(scene.one)
        yield server


def _hub(habit: Habit) -> Habit:
    """Misbehave only where bytes of the file are asked for: a hub's own pages, and its HEADs, are good."""
    return lambda asked, version: (habit if asked.method == "GET" and "/resolve/" in asked.path else well)(
        asked, version
    )


def _order(bench: Benchmark, server: FaultyServer, scene: Scene, fetcher: Fetcher, token: str = "") -> Order:
    digest = fetchers.sha256_of(scene.one.data)
    return Order(origin=server.origin, folder=bench.home(fetcher.name), sha256=digest, token=token)


def _judged(code: int | None, path: Path, scene: Scene) -> str:
    """Return how a run ended: what lies under the final name, and what the exit code says of it."""
    data = path.read_bytes() if path.is_file() else None
    if code == 0:
        return "ok" if data in scene.whole else f"{_wrong(data, scene)}, exit 0"
    unfinished = "" if data is None or data in scene.whole else ", unfinished under its final name"
    return f"hangs{unfinished}" if code is None else f"stops, {code}{unfinished}"


def _wrong(data: bytes | None, scene: Scene) -> str:
    if data is None:
        return "NO FILE"
    if data == fault_cases.PAGE:
        return "THE PAGE"
    return "TRUNCATED" if any(whole.startswith(data) for whole in scene.whole) else "WRONG BYTES"


def _told(bench: Benchmark, name: str, fetcher: Fetcher, verdict: str) -> str:
    bench.say(f"{name}: {fetcher.name}: {verdict}")
    return verdict


OURS = {
    "hf download": "stoker fetch org/repo",
    "curl": "stoker fetch URL",
    "wget": "stoker fetch URL",
    "aria2c": "stoker fetch URL",
    "aria2c --checksum": "stoker fetch URL --sha256",
}
"""Who is compared with whom: those that are told the same."""


def _count(bench: Benchmark) -> None:
    """Compare how often each program lied, and how often it ended without the right file."""
    heads, *rows = bench.verdicts
    columns = {name: [row[column] for row in rows] for column, name in enumerate(heads) if name}
    for theirs, ours in OURS.items():
        for question, counts in (("wrong files with exit 0", _is_lie), ("no right file in the end", _is_miss)):
            knows_digest = ours != "stoker fetch URL"
            bench.rows.append(
                Row(
                    question=f"{ours}: {question}, of {len(rows)} cases",
                    against=theirs,
                    unit="",
                    ours=Figure.of([sum(map(counts, columns[ours]))]) if ours in columns else None,
                    theirs=Figure.of([sum(map(counts, columns[theirs]))]) if theirs in columns else None,
                    at_most=0.0 if counts is _is_lie and knows_digest else None,
                    why_missing=bench.missing("stoker", theirs.split()[0]),
                )
            )


def _is_lie(verdict: str) -> bool:
    return ", exit 0" in verdict


def _is_miss(verdict: str) -> bool:
    return not verdict.startswith("ok") and not verdict.endswith(": ok")


if __name__ == "__main__":
    sys.exit(main())
