"""How quickly does a large file get from a server to disk, checked and durable?

nginx sends 2 GiB of random bytes from memory over the loopback interface. The mark is one sha256 over as many bytes in
memory: nobody checks a file sooner. In process is from after the imports to the end of the transfer; as a command is
from start to exit. curl checks nothing, but `sync` of its file is in its time; `hf download` neither checks nor syncs,
and has no Xet; aria2c checks in a second pass and does not sync.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import harness
from fetching import Lab, Words, lab
from harness import Figure, Row, Run, Runs, Side
from nginx import Served, Shelf
from peers import Installed

REPOSITORY = "bench/large"
SIZE_BYTES, SMALL_BYTES = 2**31, 2**26
QUICK_BYTES, QUICK_SMALL_BYTES = 2**21, 2**20
MEMORY_BYTES = 100_000_000
CORES = 2
"""The floor is that of two cores, one for each end."""
ROUNDS, SLOW_ROUNDS = 7, 3
"""The second is for those that take several times as long."""


def main() -> int:
    bench = harness.start("transfer", __doc__.splitlines()[0])
    files: list[Served] = []

    def fill(shelf: Shelf) -> None:
        large, small = (QUICK_BYTES, QUICK_SMALL_BYTES) if bench.quick else (SIZE_BYTES, SMALL_BYTES)
        files.append(shelf.add(REPOSITORY, "large.bin", large, is_large=True))
        files.append(shelf.add(REPOSITORY, "small.bin", small, is_large=True))

    with lab(bench, fill) as at:
        if at is not None:
            large, small = files
            plain(at, large)
            from_a_hub(at, large)
            tls(at, large)
            progress(at, large)
            memory(at, small, large)
    return bench.finish()


def plain(at: Lab, file: Served) -> None:
    """By its address, without TLS: the engine, the command, and programs that do less."""
    address, bench = at.server.address(file), at.bench
    sides = [
        at.script("sha256", "sha256_alone.py", file.size_bytes),
        at.engine("checked", file, way="checked"),
        at.engine("durable", file, way="durable"),
        _stoker(at, "command", file, "--no-progress"),
    ]
    if bench.program("curl"):
        sides.append(_curl(at, file))
    if aria2c := bench.program("aria2c"):
        # without its preallocation, which writes everything twice here, and by one connection, which is its quickest
        words = [aria2c, "--quiet", "--no-conf", "--file-allocation=none", f"--checksum=sha-256={file.sha256}", address]
        sides.append(at.command("aria2c", lambda _: words, brings=file.size_bytes, rounds=SLOW_ROUNDS))
    runs = bench.in_turns(sides, rounds=ROUNDS)
    for question, ours, against, theirs, at_most in (
        ("checked, in process, before the sync", "checked", "sha256 alone", "sha256", 1.176),
        ("checked and durable, in process", "durable", "sha256 alone", "sha256", 1.428),
        ("checked and durable, as a command", "command", "sha256 alone", "sha256", None),
        ("checked and durable, as a command", "command", "curl and sync", "curl", 1.111),
        ("checked and durable, as a command", "command", "aria2c --checksum", "aria2c", 0.25),
    ):
        bench.rows.append(
            Row(
                question=question,
                against=against,
                ours=_seconds(runs, ours),
                theirs=_seconds(runs, theirs),
                at_most=at_most,
                why_missing=bench.missing(theirs),
            )
        )


def from_a_hub(at: Lab, file: Served) -> None:
    """By repository and name, into the cache that other programs share."""
    bench, words = at.bench, (REPOSITORY, file.name)
    sides = [at.command("hub", lambda _: at.fetch(*words, "--no-progress"), brings=file.size_bytes)]
    if isinstance(peer := bench.peer("huggingface_hub"), Installed):
        hf = peer.program("hf")
        download = at.command("hf", lambda _: [hf, "download", *words], brings=file.size_bytes, rounds=SLOW_ROUNDS)
        sides.append(download)
    runs = bench.in_turns(sides, rounds=ROUNDS)
    for question, figure, at_most in (("", harness.seconds_of, 0.333), (": CPU time", harness.cpu_of, 0.6)):
        bench.rows.append(
            Row(
                question=f"from a hub, as a command{question}",
                against="hf download",
                ours=figure(runs["hub"]),
                theirs=figure(runs["hf"]) if "hf" in runs else None,
                at_most=at_most,
                why_missing=bench.missing("huggingface_hub"),
            )
        )


def tls(at: Lab, file: Served) -> None:
    """Against what the CPU time of client and server would take if it were spread over two cores without a gap."""
    engine = at.engine("tls", file, way="durable", origin=at.server.tls)
    floors: list[float] = []

    def once() -> Run:
        before = at.server.cpu_seconds()
        run = engine.once()
        floors.append((at.server.cpu_seconds() - before + (run.cpu_seconds or 0.0)) / CORES)
        return run

    sides = [Side(name="tls", once=once)]
    if at.bench.program("curl"):
        sides.append(_curl(at, file, origin=at.server.tls))
    runs = at.bench.in_turns(sides, rounds=ROUNDS)
    question, ours, curled = "checked and durable by TLS 1.3, in process", _seconds(runs, "tls"), _seconds(runs, "curl")
    floor = "the CPU time of both ends, on 2 cores"
    at.bench.rows += [
        Row(question=question, against=floor, ours=ours, theirs=Figure.of(floors), at_most=1.25),
        Row(question=question, against="curl and sync", ours=ours, theirs=curled, why_missing=at.bench.missing("curl")),
    ]


def progress(at: Lab, file: Served) -> None:
    """The same command on a terminal, with its progress shown and without."""
    sides = [
        _stoker(at, "shown", file, on_terminal=True),
        _stoker(at, "hidden", file, "--no-progress", on_terminal=True),
    ]
    runs = at.bench.in_turns(sides, rounds=ROUNDS)
    shown, hidden = _seconds(runs, "shown"), _seconds(runs, "hidden")
    at.bench.rows.append(
        Row(question="with its progress shown", against="--no-progress", ours=shown, theirs=hidden, at_most=1.02)
    )


def memory(at: Lab, small: Served, large: Served) -> None:
    """The peak of the whole command; the worst run decides."""
    sides = [_stoker(at, file.name, file) for file in (small, large)]
    runs = at.bench.in_turns(sides, rounds=2)
    limit = Figure.of([float(MEMORY_BYTES)])
    peaks = {file: harness.peak_of(runs[file.name]) for file in (small, large)}
    for file, against, theirs, at_most in (
        (small, "100 MB", limit, 1.0),
        (large, "100 MB", limit, 1.0),
        (large, _mib(small), peaks[small], 1.1),
    ):
        question = f"peak memory, {_mib(file)}"
        at.bench.rows.append(
            Row(question=question, against=against, unit="bytes", ours=peaks[file], theirs=theirs, at_most=at_most)
        )


def _stoker(at: Lab, name: str, file: Served, *more: str, on_terminal: bool = False) -> Side:
    def words(home: Path) -> Words:
        return at.fetch(at.server.address(file), "--sha256", file.sha256, "--out", home, *more)

    return at.command(name, words, brings=file.size_bytes, on_terminal=on_terminal)


def _curl(at: Lab, file: Served, *, origin: str = "") -> Side:
    address = at.server.address(file, origin=origin)
    trust = ("--cacert", str(at.server.certificate))
    words = shlex.join(["curl", "--silent", "--fail", *trust, "--output", "curled", address])
    return at.command("curl", lambda _: ["sh", "-c", f"{words} && exec sync curled"], brings=file.size_bytes)


def _seconds(runs: Runs, name: str) -> Figure | None:
    return harness.seconds_of(runs[name]) if name in runs else None


def _mib(file: Served) -> str:
    return f"{file.size_bytes // 2**20:,} MiB"


if __name__ == "__main__":
    sys.exit(main())
