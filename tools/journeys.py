"""Count the modules and functions that a reader of three journeys has to follow, beside the limits for them.

    python tools/journeys.py [run|claim|fetch …] [--check] [--list]

- run: `stoker run --no-out -- true` in an empty home, until the program starts, and in all;
- claim: a worker's claim that is granted, in the worker's threads and in the coordinator's, over a real connection;
- fetch: `stoker fetch` of a small file from a server on this machine.

A function is any code object of ours that is called: class bodies, comprehensions and lambdas count, as in the figures
that the limits were set by. Each journey runs in a process of its own. `run` takes about a second, all of them about
ten; `make check` prints `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "true"
LIMITS: dict[str, tuple[int, int | None]] = {
    "run until the program starts": (60, 300),
    "run": (100, 800),
    "claim, worker": (30, None),
    "claim, coordinator": (30, None),
    "fetch": (45, None),
}
"""By journey: how many modules, and how many functions, at most."""
LIMIT_S = 120.0


class Tracer:
    """Notes each function of ours when it is first called, in this thread and in those that start after `install`."""

    def __init__(self, side_of: Callable[[], str], *, is_counting: bool = True) -> None:
        """Make it; `side_of` names the journey, or the part of one, that the current call belongs to."""
        self.is_counting = is_counting
        self.calls: dict[str, dict[str, None]] = {}
        self._side_of = side_of

    def install(self) -> None:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def remove(self) -> None:
        self.is_counting = False
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or not self.is_counting:
            return
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if module.startswith("stoker") and code.co_name != "<module>":
            self.calls.setdefault(self._side_of(), {})[f"{module}:{code.co_qualname}"] = None


def trace_run() -> dict[str, list[str]]:
    before, after = "run until the program starts", "run"
    now = before

    def on_audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal now
        if event == "subprocess.Popen" and os.path.basename(str(arguments[1][-1])) == PROGRAM:
            now = after

    sys.addaudithook(on_audit)
    tracer = Tracer(lambda: now)
    _run_command(tracer, ["run", "--no-out", "--", PROGRAM])
    return {before: list(tracer.calls[before]), after: list(tracer.calls[before] | tracer.calls[after])}


def trace_fetch() -> dict[str, list[str]]:
    Path("served").mkdir()
    Path("served/model.bin").write_bytes(bytes(range(256)) * 256)
    tracer = Tracer(lambda: "fetch")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory="served")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _run_command(tracer, ["fetch", f"http://127.0.0.1:{server.server_port}/model.bin", "--out", "models"])
        server.shutdown()
    return {side: list(calls) for side, calls in tracer.calls.items()}


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_words: Any) -> None:
        return


def _run_command(tracer: Tracer, words: list[str]) -> None:
    """Run a command of ours in this process. Exit with a message if it fails."""
    from stoker.__main__ import main

    sys.argv = ["stoker", *words]
    tracer.install()
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"`stoker {' '.join(words)}` ended with {end.code}")
    finally:
        tracer.remove()


def trace_claim() -> dict[str, list[str]]:
    # The coordinator of the tests: a real one, in threads of this process.
    sys.path.insert(0, str(ROOT))
    from stoker.app.worker_app import ClaimConnectionPool
    from stoker.core.capability import Capability
    from stoker.core.clock import SystemClock
    from stoker.protocol.job_messages import Submission
    from stoker.protocol.lease_messages import Hello, WorkerMeasurements
    from stoker.worker.coordinator_calls import ClaimLoop, PendingClaim, WorkerConnections
    from stoker.worker.worker_state import ClaimAnswered
    from tests.contract.queue_driving import order
    from tests.servers.coordinator import coordinator

    workers = {"MainThread", "stoker-hello", "stoker-claims", "stoker-heartbeat"}

    def side() -> str:
        return f"claim, {'worker' if threading.current_thread().name in workers else 'coordinator'}"

    tracer = Tracer(side, is_counting=False)
    tracer.install()
    machine = Capability(hostname="desk", os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=1 << 36)
    hello = Hello(
        worker="desk",
        incarnation="incarnation-1",
        capability=machine.to_dict(),
        capability_digest=machine.digest,
        slots=4,
    )
    with coordinator(f"sqlite:///{Path('queue.db').absolute()}", Path.cwd()) as fleet:
        client = fleet.client()
        client.submit(Submission(jobs=(order("first"), order("second"))))
        client.hello(hello)
        answered, answers = threading.Event(), list[Any]()

        def report(answer: Any) -> None:
            answers.append(answer)
            answered.set()

        def open_line() -> Any:
            opened = fleet.client()
            return opened, fleet.transports[-1]

        lines = WorkerConnections(url=fleet.url, words=client, bytes=client, ask=ClaimConnectionPool(open_line).ask)
        numbers = iter(range(1 << 20))
        loop = ClaimLoop(
            lines, hello=lambda: hello, clock=SystemClock(), report=report, new_word=lambda: f"request-{next(numbers)}"
        )
        claim = PendingClaim(most=1, wait_s=0.0, measured=WorkerMeasurements, stopping=lambda: (), looks_around=False)
        # The first claim imports and prepares what every later one uses.
        for is_counted in (False, True):
            answered.clear()
            tracer.is_counting = is_counted
            loop.claim(claim)
            if not answered.wait(LIMIT_S) or not isinstance(answers[-1], ClaimAnswered):
                sys.exit(f"the claim was not granted: {answers}")
        tracer.remove()
        loop.close()
    return {name: list(calls) for name, calls in sorted(tracer.calls.items(), reverse=True)}


TRACES = {"run": trace_run, "claim": trace_claim, "fetch": trace_fetch}


def traced_apart(journey: str) -> dict[str, list[str]]:
    """Trace a journey in a process of its own, in an empty folder and home."""
    with tempfile.TemporaryDirectory(prefix="stoker-journey-") as folder:
        home = {"HOME": folder, "STOKER_HOME": os.path.join(folder, "home"), "XDG_RUNTIME_DIR": folder}
        work = os.path.join(folder, "work")
        os.mkdir(work)
        ended = subprocess.run(
            [sys.executable, __file__, "--trace", journey],
            cwd=work,
            env={**os.environ, **home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if ended.returncode:
            sys.exit(f"journey {journey}: {ended.stderr.strip() or f'exit code {ended.returncode}'}")
        found: dict[str, list[str]] = json.loads(Path(work, "functions.json").read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journeys", nargs="*", metavar="JOURNEY", help=f"{', '.join(TRACES)} (default: all)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--list", action="store_true", help="print the functions, in the order of their first call")
    parser.add_argument("--trace", choices=TRACES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.trace:
        Path("functions.json").write_text(json.dumps(TRACES[asked.trace]()))
        return
    unknown = set(asked.journeys) - set(TRACES)
    if unknown:
        parser.error(f"no such journey: {', '.join(sorted(unknown))}")
    is_over = False
    print(f"{'journey':30} {'modules':>8} {'limit':>6} {'functions':>10} {'limit':>6}")
    for journey in asked.journeys or TRACES:
        for name, functions in traced_apart(journey).items():
            most_modules, most_functions = LIMITS[name]
            modules = len({function.partition(":")[0] for function in functions})
            shown_limit = "" if most_functions is None else most_functions
            print(f"{name:30} {modules:8} {most_modules:6} {len(functions):10} {shown_limit:>6}")
            is_over |= modules > most_modules or len(functions) > (most_functions or len(functions))
            for function in functions if asked.list else ():
                print(f"    {function}")
    if asked.check and is_over:
        sys.exit(1)


if __name__ == "__main__":
    main()
