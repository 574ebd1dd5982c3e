"""How soon is a curve of 1,000,000 points on the screen, beside TensorBoard, MLflow and Aim?

Each side gets the same values by its own writer and serves them with its own server on loopback: ours is a coordinator
to which a worker sent them while a program reported them. A tab with an empty cache opens the page of the run; the time
is from the navigation to the end of the frame in which a line of at least a hundred points is drawn for the first time:
on a canvas, by WebGL, as SVG, or by a worker over half the width of a canvas. Servers have all data before the first
navigation. Sides run in turns.

TensorBoard keeps 1,000 points of a curve, chosen by chance, unless it is started with `--samples_per_plugin
scalars=1000000`: both are measured. (0 stands for all in its documentation, and gives none in 2.21.)
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser as browsers
import fleet
import harness
from browser import MeasuredTab
from fleet import Coordinator
from fleet_latency import working
from harness import Benchmark, Figure, Row
from peers import Installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

POINTS, QUICK_POINTS = 1_000_000, 2_000
ROUNDS = 7
OPEN_S, SERIES_KB = 0.5, 200.0
WAIT_S = 600.0
LONGEST_MS = 120_000
PEERS = {"TensorBoard": "tensorboard", "TensorBoard, all points": "tensorboard", "MLflow": "mlflow", "Aim": "aim"}
_LEAST_POINTS = 100
_SERIES = "/v1/jobs/curve/series?points=4000"

DRAWN = """
{
  const channel = new MessageChannel();
  let isDrawn = false;
  window.curveDrawn = new Promise((resolve) => {
    channel.port1.onmessage = () => resolve(performance.now() / 1000);
  });
  const drawn = (points) => {
    if (isDrawn || !(points >= LEAST)) return;
    isDrawn = true;
    // The message arrives once the frame is done.
    requestAnimationFrame(() => channel.port2.postMessage(0));
  };
  const wrap = (type, name, before) => {
    const own = type?.prototype[name];
    if (own) type.prototype[name] = function (...given) { before(this, given); return own.apply(this, given); };
  };
  const counts = new WeakMap();
  const add = (one) => counts.set(one, (counts.get(one) ?? 0) + 1);
  wrap(Path2D, 'lineTo', add);
  for (const type of [CanvasRenderingContext2D, window.OffscreenCanvasRenderingContext2D]) {
    wrap(type, 'beginPath', (one) => counts.set(one, 0));
    wrap(type, 'lineTo', add);
    wrap(type, 'stroke', (one, [path]) => drawn(counts.get(path ?? one)));
  }
  for (const type of [window.WebGLRenderingContext, window.WebGL2RenderingContext]) {
    wrap(type, 'drawArrays', (_one, given) => drawn(given[2]));
    wrap(type, 'drawElements', (_one, given) => drawn(given[1]));
  }
  // Lines of data are made of straight pieces; icons, some of which are longer, of bent ones.
  wrap(Element, 'setAttribute', (_one, [name, text]) => {
    if (name === 'd') drawn(String(text).split('L').length - 1);
    if (name === 'points') drawn(String(text).trim().split(/\\s+/).length);
  });
  // A canvas that a worker draws on shows what it has: look at it in each frame.
  const small = new OffscreenCanvas(64, 64).getContext('2d', { willReadFrequently: true });
  wrap(HTMLCanvasElement, 'transferControlToOffscreen', (canvas) => {
    const look = () => {
      if (canvas.width && canvas.height) {
        small.clearRect(0, 0, 64, 64);
        small.drawImage(canvas, 0, 0, 64, 64);
        const { data } = small.getImageData(0, 0, 64, 64);
        const columns = new Set();
        for (let at = 3; at < data.length; at += 4) if (data[at]) columns.add((at >> 2) % 64);
        if (columns.size >= 32) drawn(LEAST);
      }
      if (!isDrawn) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
}
""".replace("LEAST", str(_LEAST_POINTS))

Opened = tuple[str, Callable[[MeasuredTab], None]]
"""An address, and what is done with the tab before it is opened."""


def main() -> int:
    bench = harness.start("curves_peers", __doc__.splitlines()[0])
    stoker, missing = bench.peer("stoker"), browsers.missing()
    if missing or not isinstance(stoker, Installed):
        why = missing or getattr(stoker, "reason", "")
        bench.rows.append(Row(question="a long curve", against="500 ms", ours=None, theirs=None, why_missing=why))
        return bench.finish()
    points = QUICK_POINTS if bench.quick else POINTS
    with ExitStack() as running:
        sides = {"stoker": running.enter_context(ours(bench, stoker, points))}
        for name, peer in PEERS.items():
            found = bench.peer(peer)
            if isinstance(found, Installed):
                bench.say(f"{points:,} values for {name}")
                sides[name] = running.enter_context(SERVERS[peer](bench, found, points, name))
        browser = running.enter_context(browsers.chromium())
        bench.versions["chromium"] = browser.version
        measure(bench, browser, sides, points)
    return bench.finish()


def measure(bench: Benchmark, browser: Browser, sides: dict[str, Opened], points: int) -> None:
    """Open each side in turns."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    received: dict[str, int] = {}
    for turn in range(1 if bench.quick else ROUNDS):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            seconds, received[name] = opened(browser, *sides[name])
            took[name].append(seconds)
    most = None if bench.quick else 1.0
    question = f"navigation → curve of {points:,} points drawn, median"
    median = {name: Figure.of([statistics.median(values)]) for name, values in took.items()}
    goal = Figure.of([OPEN_S])
    bench.rows.append(Row(question=question, against="500 ms", ours=median["stoker"], theirs=goal, at_most=most))
    for name, peer in PEERS.items():
        missing = bench.missing(peer)
        row = Row(question=question, against=name, ours=median["stoker"], theirs=median.get(name), why_missing=missing)
        bench.rows.append(row)
    for name in PEERS:
        if name in received:
            ours_bytes, theirs_bytes = (Figure.of([received[one] / 1000]) for one in ("stoker", name))
            bench.rows.append(
                Row(
                    question="received by the browser until then",
                    against=name,
                    unit="KB",
                    ours=ours_bytes,
                    theirs=theirs_bytes,
                )
            )


def opened(browser: Browser, url: str, prepare: Callable[[MeasuredTab], None]) -> tuple[float, int]:
    """Return the seconds until the curve is drawn, and the bytes received until then."""
    tab = MeasuredTab(browser, DRAWN)
    try:
        prepare(tab)
        tab.page.goto(url, wait_until="commit")
        found = tab.page.evaluate(
            f"Promise.race([window.curveDrawn, new Promise((give) => setTimeout(give, {LONGEST_MS}))])"
        )
        if found is None:
            raise RuntimeError(f"{url} drew no curve within {LONGEST_MS / 1000:.0f} s")
        return float(found), tab.received_bytes
    finally:
        tab.close()


# Servers, each with all its data.


@contextmanager
def ours(bench: Benchmark, peer: Installed, points: int) -> Iterator[Opened]:
    """A coordinator, and a worker on which a program reported the curve."""
    home, project = bench.home("stoker"), bench.home("project")
    program = [sys.executable, str(harness.SIDES / "curve_program.py"), str(points)]
    with fleet.serving(peer, home) as coordinator:
        with working(peer, coordinator, "w"):
            submit = [str(peer.program("stoker")), "submit", "--yes", "--quiet", "--name", "curve", "--", *program]
            settings = harness.environment_with(coordinator.environment)
            subprocess.run(submit, check=True, cwd=project, env=settings, stdout=subprocess.DEVNULL)
            _until(lambda: _is_complete(coordinator))
        series = coordinator.get(_SERIES)
        if (total := sum(one["total"] for one in series["series"])) != points:
            raise RuntimeError(f"{total:,} of {points:,} values came")
        size = len(json.dumps(series).encode())
        bench.rows.append(_size_row(bench, size, points))
        yield f"{coordinator.url}/#/job/curve", lambda tab: browsers.log_in(tab, coordinator)


def _is_complete(coordinator: Coordinator) -> bool:
    state = coordinator.get("/v1/jobs/curve")["job"]["state"]
    if state in ("failed", "cancelled"):
        raise RuntimeError(f"the job has {state}")
    return bool(state == "completed")


def _size_row(bench: Benchmark, size: int, points: int) -> Row:
    return Row(
        question=f"a curve of {points:,} points in one response",
        against="200 KB",
        unit="KB",
        ours=Figure.of([size / 1000]),
        theirs=Figure.of([SERIES_KB]),
        at_most=None if bench.quick else 1.0,
    )


@contextmanager
def _tensorboard(bench: Benchmark, peer: Installed, points: int, name: str) -> Iterator[Opened]:
    home, port = bench.bench / "scratch" / bench.name / "tensorboard", _free_port()
    if not home.exists():
        # Both ways read the same files.
        _written(peer, "curve_tensorboard.py", bench.home("tensorboard"), points)
    is_all = name != "TensorBoard"
    more = ["--samples_per_plugin", f"scalars={points}"] if is_all else []
    command = [
        str(peer.program("tensorboard")),
        "--logdir",
        str(home),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *more,
    ]
    url = f"http://127.0.0.1:{port}"
    with _serving(command, home.parent):
        expected = points if is_all else min(points, 1000)
        _until(lambda: len(_get(f"{url}/data/plugin/scalars/scalars?tag=loss&run=curve") or ()) >= expected)
        yield f"{url}/#timeseries", lambda _tab: None


@contextmanager
def _mlflow(bench: Benchmark, peer: Installed, points: int, _name: str) -> Iterator[Opened]:
    home, port = bench.home("mlflow"), _free_port()
    experiment, run = _written(peer, "curve_mlflow.py", home, points).split()[-2:]
    store = ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with _serving([str(peer.program("mlflow")), "server", "--workers", "1", *store], home):
        _until(lambda: _get(f"{url}/api/2.0/mlflow/runs/get?run_id={run}") is not None)
        yield f"{url}/#/experiments/{experiment}/runs/{run}/model-metrics", lambda _tab: None


@contextmanager
def _aim(bench: Benchmark, peer: Installed, points: int, _name: str) -> Iterator[Opened]:
    home, port = bench.home("aim"), _free_port()
    run = _written(peer, "curve_aim.py", home, points).split()[-1]
    url = f"http://127.0.0.1:{port}"
    command = [str(peer.program("aim")), "up", "--repo", str(home), "--host", "127.0.0.1", "--port", str(port)]
    with _serving(command, home):
        _until(lambda: _get(f"{url}/api/runs/{run}/info") is not None)
        yield f"{url}/runs/{run}/metrics", lambda _tab: None


SERVERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "aim": _aim}
_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "AIM_UI_TELEMETRY_ENABLED": "0"}


def _written(peer: Installed, script: str, home: Path, points: int) -> str:
    """Write the curve; return what the side prints."""
    command = [str(peer.python), str(harness.SIDES / script), str(home), str(points)]
    settings = harness.environment_with(_SETTINGS)
    done = subprocess.run(command, env=settings, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _serving(command: list[str], home: Path) -> Iterator[None]:
    with (home / "server.log").open("wb") as log:
        settings = harness.environment_with({**_SETTINGS, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"})
        program = subprocess.Popen(command, env=settings, cwd=home, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            # It may have children: its own session has them.
            os.killpg(program.pid, 15)
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, 9)
                program.wait()


def _get(url: str) -> Any:
    """Return what an address answers; None if it does not yet."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError("waited in vain")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
