"""A coordinator and a watcher inside a Slurm, and jobs for its pool; one way in each process.

    python slurm_stoker.py one|many|looks --home FOLDER --environment FOLDER [--count N] [--seconds S]

`one`: one job on an idle Slurm, and the next on its worker, N times. `many`: N jobs of S seconds on four slots.
`looks`: how often the watcher runs `squeue` while a job trains.

The clock runs from the call of `Client.submit`. Coordinator and watcher are up before. Slurm's commands are counted by
scripts of the same names in front of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fleet
from peers import Installed

IDLE_S = {"one": 5, "many": 60, "looks": 60}
"""On a busy machine a worker with a shorter time may leave before its first grant arrives."""
SETTLED_S = 40.0
"""The pause between two looks doubles from 1 s to 30 s."""
COUNTED_S = 60.0
WAIT_S = 300.0
COUNTED = ("sbatch", "squeue")
STAMP = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time()) + chr(10))"
POOL = """\
pools:
  - name: small
    backend: slurm
    each: {{ cpu_cores: 1 }}
    folder: {folder}
    python: {python}
    wall: 20m
    max: 4
    backlog: 4
    idle: {idle}s
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("one", "many", "looks"))
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--environment", type=Path, required=True, help="the folder of the environment with Stoker")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    asked = parser.parse_args()
    home: Path = asked.home
    os.environ["STOKER_HOME"] = str(home)
    for name in ("shared", "project", "node"):
        (home / name).mkdir()
    here = Installed(name="stoker", folder=asked.environment)
    (home / "cluster.yaml").write_text(POOL.format(folder=home / "shared", python=here.python, idle=IDLE_S[asked.way]))
    with fleet.serving(here, home, "--cluster", str(home / "cluster.yaml"), listen="0.0.0.0:0"), watching(here, home):
        from stoker import Client

        with Client() as client:
            ways = {"one": one, "many": many, "looks": looks}
            print(json.dumps(ways[asked.way](client, home, asked)))


def one(client: object, home: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Measure in turns: an empty script of Slurm, a job on an idle Slurm, the next one on its worker, its end."""
    times: dict[str, list[float]] = {"slurm": [], "first": [], "next": [], "gone": []}
    for number in range(asked.count):
        mark = home / f"slurm{number}"
        started_s = time.time()
        script = f"#!/bin/sh\ndate +%s.%N > {mark}\n"
        subprocess.run(["sbatch", "--parsable", "--output=/dev/null"], input=script, text=True, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        times["slurm"].append(_read(mark) - started_s)
        _until(_is_empty, 0.25)
        for turn in ("first", "next"):
            mark = home / f"{turn}{number}"
            command = [sys.executable, "-c", STAMP, str(mark)]
            times[turn].append(_submit(client, home, f"{turn}{number}", command, mark))
            ended_s = time.time()
            if turn == "first":
                # The worker makes the process of its next job meanwhile.
                time.sleep(1)
        _until(_is_empty, 0.25)
        times["gone"].append(time.time() - ended_s)
    return times


def many(client: object, home: Path, asked: argparse.Namespace) -> dict[str, float]:
    """Run jobs that take some time on four slots."""
    command = [sys.executable, "-c", "import time, sys; time.sleep(float(sys.argv[1]))", str(asked.seconds), "{n}"]
    manifest = home / "project" / "manifest.toml"
    numbers = list(range(asked.count))
    manifest.write_text(f'[[jobs]]\nname = "many"\ncommand = {json.dumps(command)}\nsweep = {{ n = {numbers} }}\n')
    started_s = time.perf_counter()
    client.submit(manifest)  # type: ignore[attr-defined]
    jobs = client.wait("many", WAIT_S)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - started_s
    done = sum(job.state == "completed" for job in jobs)
    return {"seconds": seconds, "executed": done, "sbatch": _calls(home, "sbatch")}


def looks(client: object, home: Path, _asked: argparse.Namespace) -> dict[str, float]:
    """Count the looks of a minute in which nothing moves."""
    mark = home / "long"
    command = [sys.executable, "-c", STAMP + "; time.sleep(600)", str(mark)]
    _write_manifest(home, "long", command)
    client.submit(home / "project" / "manifest.toml")  # type: ignore[attr-defined]
    _read(mark)
    time.sleep(SETTLED_S)
    before = _calls(home, "squeue")
    time.sleep(COUNTED_S)
    return {"looks": (_calls(home, "squeue") - before) * 60 / COUNTED_S}


@contextmanager
def watching(here: Installed, home: Path) -> Iterator[None]:
    """Run `stoker launch watch`; what it calls of Slurm is counted."""
    counting = home / "counting"
    counting.mkdir()
    for name in COUNTED:
        real = shutil.which(name)
        (counting / name).write_text(f'#!/bin/sh\necho x >> {counting}/{name}.calls\nexec {real} "$@"\n')
        (counting / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{counting}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(home / "node"),
    }
    log = home / "watch.log"
    with log.open("wb") as out:
        program = subprocess.Popen([here.program("stoker"), "launch", "watch"], env=environment, stdout=out, stderr=out)
        try:
            _until(lambda: b"watched" in log.read_bytes() or program.poll() is not None)
            yield
        finally:
            program.send_signal(signal.SIGTERM)
            program.wait(30)


def _submit(client: object, home: Path, name: str, command: list[str], mark: Path) -> float:
    """Submit a job and wait for its end; return how long it took to its program's first line."""
    _write_manifest(home, name, command)
    started_s = time.time()
    client.submit(home / "project" / "manifest.toml")  # type: ignore[attr-defined]
    (job,) = client.wait(name, WAIT_S)  # type: ignore[attr-defined]
    if job.state != "completed":
        raise RuntimeError(f"{name} is {job.state}:\n{(home / 'watch.log').read_text()[-2000:]}")
    return _read(mark) - started_s


def _write_manifest(home: Path, name: str, command: list[str]) -> None:
    text = f'[[jobs]]\nname = "{name}"\ncommand = {json.dumps(command)}\n'
    (home / "project" / "manifest.toml").write_text(text)


def _calls(home: Path, name: str) -> int:
    calls = home / "counting" / f"{name}.calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def _is_empty() -> bool:
    return not subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout.strip()


def _read(mark: Path) -> float:
    _until(lambda: mark.exists() and mark.read_text().endswith("\n"), 0.02)
    return float(mark.read_text())


def _until(is_so: Callable[[], bool], pause_s: float = 0.1) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError("waited in vain")
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
