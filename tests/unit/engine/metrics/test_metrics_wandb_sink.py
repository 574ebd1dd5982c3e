from __future__ import annotations

import json
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.wandb import SinkEnd, WandbRun, WandbSink
from stoker.core.clock import FakeClock
from stoker.core.jsontext import loads
from stoker.engine.metrics.metrics_file import MetricSource, MetricsWriter
from stoker.host.processes import group_members

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "src" / "stoker" / "trainer" / "stoker_wandb.py"
WANDB_PYTHON = next(
    (
        str(python)
        for python in (sys.executable, ROOT / ".bench" / "environments" / "wandb" / "bin" / "python")
        if (python == sys.executable and find_spec("wandb")) or (python != sys.executable and Path(python).exists())
    ),
    "",
)

# A stand-in for the library, so that the real script runs: it writes down what it was told.
LIBRARY = """
import json, os
class Settings:
    def __init__(self, **given): self.given = given
class Run:
    def __init__(self, dir):
        self.dir, self.file = os.path.join(dir, "run", "files"), open(os.path.join(dir, "log"), "w")
    def define_metric(self, name, step_metric): pass
    def log(self, values): self.say({"log": values})
    def finish(self, exit_code): self.say({"finish": exit_code}); self.file.close()
    def say(self, what): self.file.write(json.dumps(what) + "\\n"); self.file.flush()
def init(settings, **given):
    print("wandb: noise on standard output")
    run = Run(given["dir"])
    run.say({"init": given})
    return run
"""


class Scene:
    """A run whose metrics are followed, with a library of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[str] = []
        self.library = folder / "library"
        self.library.mkdir()
        self.writer = MetricsWriter(str(folder / "a.skm"), clock=FakeClock(), flush_s=3600.0)

    def sink(self, library: str = LIBRARY, *, script: Path = SCRIPT, **options: Any) -> WandbSink:
        (self.library / "wandb.py").write_text(library)
        run = WandbRun(
            python=options.pop("python", sys.executable),
            folder=str(self.folder / "wandb"),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.library), "PYTHONDONTWRITEBYTECODE": "1"},
            name="lr=0.1",
            config={"lr": 0.1, "x": math.nan},
        )
        paths = [self.writer.path, str(self.folder / "none.skm")]
        return WandbSink(run, paths, script=str(script), on_fault=self.faults.append, **options)

    def script(self, text: str) -> Path:
        path = self.folder / "script.py"
        path.write_text(text)
        return path

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "wandb" / "log").read_text().splitlines()]


def is_gone(sink: WandbSink) -> bool:
    return sink._child is not None and not group_members(sink._child.identity)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_rows_reach_wandb_those_of_one_step_together(scene: Scene) -> None:
    sink = scene.sink(follow_s=0.01)
    sink.begin()
    scene.writer.add(1, {"loss": 0.5, "acc": 0.25})
    scene.writer.add(2, {"loss": math.inf}, source=MetricSource.STDOUT)
    scene.writer.close()
    end = sink.finish()
    assert end == SinkEnd(rows=3, where=str(scene.folder / "wandb" / "run"))
    assert scene.faults == []
    begin, *logs, finish = scene.log()
    assert begin["init"]["mode"] == "offline"
    assert begin["init"]["project"] == "stoker"
    assert begin["init"]["config"]["lr"] == 0.1
    assert [entry["log"] for entry in logs] == [{"loss": 0.5, "acc": 0.25, "step": 1}, {"loss": math.inf, "step": 2}]
    assert finish == {"finish": 0}


def test_what_is_written_after_the_first_look_is_followed(scene: Scene) -> None:
    sink = scene.sink(follow_s=0.001)
    sink.begin()
    for step in range(20):
        scene.writer.add(step, {"loss": float(step)})
        scene.writer.flush()
    scene.writer.close()
    assert sink.finish().rows == 20
    assert [entry["log"]["step"] for entry in scene.log()[1:-1]] == list(range(20))


def test_an_interpreter_without_wandb_is_told_once(scene: Scene) -> None:
    sink = scene.sink("raise ImportError('no wandb here')")
    sink.begin()
    for step in range(1000):
        scene.writer.add(step, {"loss": 1.0})
    scene.writer.close()
    end = sink.finish()
    assert end == SinkEnd(rows=0, fault="ImportError: no wandb here")
    assert scene.faults == ["wandb: ImportError: no wandb here"]


def test_wandb_may_raise_in_the_middle(scene: Scene) -> None:
    sink = scene.sink(LIBRARY.replace('self.say({"log": values})', "raise RuntimeError('quota')"))
    sink.begin()
    scene.writer.add(1, {"loss": 1.0})
    scene.writer.close()
    assert sink.finish().fault == "RuntimeError: quota"


def test_an_interpreter_that_is_not_there_is_told(scene: Scene) -> None:
    sink = scene.sink(python="/none/python")
    sink.begin()
    end = sink.finish()
    assert end.fault.endswith("/none/python")
    assert len(scene.faults) == 1


def test_a_process_that_hangs_is_stopped_in_the_end(scene: Scene) -> None:
    sink = scene.sink(script=scene.script("import signal\nwhile True: signal.pause()"), follow_s=0.001)
    sink.begin()
    for step in range(20_000):
        scene.writer.add(step, {"a name that fills the pipe": 1.0})
    scene.writer.close()
    end = sink.finish(timeout_s=0.2)
    assert end == SinkEnd(rows=0, fault="it did not finish within 0.2 s")
    assert scene.faults == ["wandb: it did not finish within 0.2 s"]
    assert is_gone(sink)


@pytest.mark.parametrize("text", ["", "print('hello')", "print('{}')", "import os; os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_without_an_answer_is_told(scene: Scene, text: str) -> None:
    sink = scene.sink(script=scene.script(text))
    sink.begin()
    scene.writer.add(1, {"loss": 1.0})
    scene.writer.close()
    assert sink.finish().fault == "it ended without an answer"
    assert is_gone(sink)


def test_one_run_sends_only_so_much(scene: Scene) -> None:
    sink = scene.sink(most_bytes=1000)
    sink.begin()
    for step in range(1000):
        scene.writer.add(step, {"loss": 1.0})
    scene.writer.close()
    end = sink.finish()
    assert 0 < end.rows < 30
    assert "the rest is in the local files only" in end.fault
    assert scene.log()[-1] == {"finish": 0}


def test_the_users_own_variables_are_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    before = dict(os.environ)
    sink = scene.sink()
    sink.begin()
    sink.finish()
    assert dict(os.environ) == before


def test_lines_are_json_with_tagged_numbers(scene: Scene) -> None:
    script = scene.script("import sys; open('lines', 'wb').write(sys.stdin.buffer.read())")
    sink = scene.sink(script=script)
    sink.begin()
    scene.writer.add(1, {"loss": math.nan})
    scene.writer.close()
    sink.finish()
    lines = (scene.folder / "wandb" / "lines").read_bytes().splitlines()
    assert [loads(line)["kind"] for line in lines] == ["begin", "log", "end"]
    assert lines[1] == b'{"kind":"log","step":1,"values":{"loss":{"$float":"nan"}}}'


@pytest.mark.slow
@pytest.mark.skipif(not WANDB_PYTHON, reason="no interpreter here has wandb")
def test_the_real_wandb_takes_it_offline(scene: Scene) -> None:
    sink = scene.sink(python=WANDB_PYTHON)
    (scene.library / "wandb.py").unlink()
    sink.begin()
    for step in range(100):
        scene.writer.add(step, {"loss": 1.0 / (step + 1), "acc": math.nan})
    scene.writer.close()
    end = sink.finish()
    assert (end.rows, end.fault) == (200, "")
    assert [name for name in os.listdir(end.where) if name.endswith(".wandb")]
