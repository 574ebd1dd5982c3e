"""Does somebody else's training program show curves, a best trial and a resume after kill -9, unchanged?

Each program runs as a sweep of two trials, then once more alone: that run is killed with its `stoker` by kill -9 in the
middle, and the same line is given again. Then it goes to a coordinator with one worker: there its process is killed
with kill -9, of one program also the whole worker, which is started again. The job has to be retried, to resume and to
end with a result by itself. A program without checkpoints is submitted as the sweep.

`--sources DIR` names a folder with the checkouts of the programs, by the names below; one that is not there is said to
be missing. Without it, and in the smoke run, a miniature of our own is tried. `first_hour_programs/` has what a user of
a library would write after its own pages. Programs that need libraries run with `--python` (default: the interpreter
that runs this), and one whose libraries it lacks is said to be missing.

    DIR/nanoGPT          github.com/karpathy/nanoGPT
    DIR/examples         github.com/pytorch/examples
"""

from __future__ import annotations

import array
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fleet
import harness
from fleet import Coordinator
from harness import Benchmark, Figure, Row
from peers import Installed

PROGRAMS = Path(__file__).resolve().parent / "first_hour_programs"
TEXT = "the quick brown fox jumps over the lazy dog and runs through the forest again. "
LIMIT_S = 180.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Two programs run at a time, one here and one on the fleet."""
HEADS = ["program", "commit", "curves", "best of the sweep", "after kill -9", "on the fleet", "options that it needs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program: what its sweep and its long run are given after `stoker run`, and `stoker submit`."""

    name: str
    folder: str = ""
    """In the sources; empty: one of ours."""
    script: str
    sweep: tuple[str, ...]
    long: tuple[str, ...] = ()
    """Empty: it has no checkpoints to resume from."""
    kill_at: str = ""
    """The log of the long run has this when it is killed; empty: as soon as there is a checkpoint."""
    continued: str = ""
    """The program itself prints this when it resumes; empty: `from_start` decides."""
    from_start: str = ""
    """The program prints this only when it starts from the beginning."""
    fleet: tuple[str, ...] = ()
    """What only `submit` needs."""
    kills: tuple[str, ...] = ("process",)
    """What is killed on the fleet, each in a job of its own."""
    needs: tuple[str, ...] = ()
    """Distributions; the first one names the library."""
    options: str = ""
    """What a user has to add to the program's own line, and why."""
    prepare: Callable[[Path, str], None] = lambda _folder, _python: None


def _shakespeare(folder: Path, _python: str) -> None:
    """Write a small data set of our own text where nanoGPT's own script would put its."""
    place, text = folder / "data" / "shakespeare_char", TEXT * 3000
    place.mkdir(parents=True, exist_ok=True)
    number = {char: index for index, char in enumerate(sorted(set(text)))}
    ids = [number[char] for char in text]
    for name, part in (("train", ids[: len(ids) * 9 // 10]), ("val", ids[len(ids) * 9 // 10 :])):
        (place / f"{name}.bin").write_bytes(array.array("H", part).tobytes())
    names = {index: char for char, index in number.items()}
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(number), "itos": names, "stoi": number}))


def _corpus(folder: Path, _python: str) -> None:
    place = folder / "own_text"
    place.mkdir(exist_ok=True)
    for name in ("train", "valid", "test"):
        (place / f"{name}.txt").write_text(f"{TEXT}\n" * 100)


def _sine_waves(folder: Path, python: str) -> None:
    """Write what the program's own script writes, with fewer and shorter waves."""
    waves = "numpy.sin((numpy.arange(40) + 9 * numpy.arange(6)[:, None]) / 20)"
    code = f"import numpy, torch; torch.save({waves}, open('traindata.pt', 'wb'))"
    subprocess.run([python, "-c", code], cwd=folder, check=True, capture_output=True)


_NANO = (
    *("python", "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=2"),
    *("--log_interval=10", "--eval_interval=20", "--block_size=32", "--batch_size=4", "--n_layer=2", "--n_head=2"),
    *("--n_embd=32", "--dropout=0.0", "--out_dir=runs", "--always_save_checkpoint=True"),
)
_WORDS = ("--data", "own_text", "--epochs", "1", "--emsize", "16", "--nhid", "16", "--nlayers", "1", "--bptt", "10")
MINIATURE = Case(
    name="a miniature of our own",
    script="miniature.py",
    sweep=("lr=0.1,1", "--", "python", "miniature.py", "--lr", "{lr}", "--steps", "10"),
    long=("outputs=runs/", "--", "python", "miniature.py", "--steps", "40", "--init_from={resume?resume:scratch}"),
    kill_at="step 10:",
    from_start="iter 1:",
)
CASES = (
    MINIATURE,
    Case(
        name="nanoGPT",
        folder="nanoGPT",
        script="train.py",
        sweep=("lr=1e-3,1e-2", "--", *_NANO, "--max_iters=40", "--learning_rate={lr}"),
        long=("outputs=runs/", "--", *_NANO, "--max_iters=1500", "--init_from={resume?resume:scratch}"),
        kill_at="step 60:",
        fleet=("--data", "data/shakespeare_char=data/shakespeare_char"),
        kills=("process", "worker"),
        continued="Resuming training from runs",
        needs=("torch", "numpy"),
        options="`--init_from={resume?resume:scratch}`: the program resumes only if asked to; "
        "`--data` on the fleet: git ignores its data",
        prepare=_shakespeare,
    ),
    Case(
        name="PyTorch regression",
        folder="examples/regression",
        script="main.py",
        sweep=("n=1,2", "--", "python", "main.py"),
        needs=("torch",),
    ),
    Case(
        name="PyTorch word_language_model",
        folder="examples/word_language_model",
        script="main.py",
        sweep=("lr=20,2", "--", "python", "main.py", *_WORDS, "--lr", "{lr}", "--save", "{out}/model.pt"),
        needs=("torch",),
        prepare=_corpus,
    ),
    Case(
        name="PyTorch time_sequence_prediction",
        folder="examples/time_sequence_prediction",
        script="train.py",
        sweep=(
            *("steps=1,2", "env.TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"),
            *("--", "python", "train.py", "--steps", "{steps}"),
        ),
        needs=("torch", "numpy", "matplotlib"),
        options="`env.TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`: it does not run with torch ≥ 2.6 otherwise, "
        "with Stoker or without",
        prepare=_sine_waves,
    ),
    Case(
        name="Hugging Face Trainer",
        script="hf_trainer.py",
        sweep=("lr=1e-4,1e-3", "--", "python", "hf_trainer.py", "--lr", "{lr}", "--output_dir", "{out}"),
        long=(
            *("outputs=runs/", "--", "python", "hf_trainer.py", "--steps", "400"),
            *("--resume_from_checkpoint", "{resume}"),
        ),
        kill_at="'eval_loss'",
        from_start="'epoch': '0.3125'",
        needs=("transformers", "torch", "accelerate"),
        options="`--resume_from_checkpoint {resume}`: the program resumes only if asked to",
    ),
    Case(
        name="TRL SFT",
        script="trl_sft.py",
        sweep=("lr=1e-4,1e-2", "--", "python", "trl_sft.py", "--learning_rate", "{lr}", "--output_dir", "{out}"),
        long=(
            *("outputs=runs/", "--", "python", "trl_sft.py", "--max_steps", "160"),
            *("--resume_from_checkpoint", "{resume}"),
        ),
        kill_at="'eval_loss'",
        from_start="'epoch': '0.8333'",
        needs=("trl", "transformers", "datasets", "torch", "accelerate"),
        options="`--resume_from_checkpoint {resume}`: the same",
    ),
    Case(
        name="Lightning",
        script="lightning_fit.py",
        sweep=("lr=1e-4,1e-2", "--", "python", "lightning_fit.py", "--lr", "{lr}", "--log_dir", "{out}"),
        long=("outputs=logs/", "--", "python", "lightning_fit.py", "--max_epochs", "20", "--ckpt_path", "{resume}"),
        continued="Restor",
        needs=("lightning", "torch"),
        options="`--ckpt_path {resume}`: the same",
    ),
    Case(
        name="Keras on torch",
        script="keras_fit.py",
        sweep=("lr=1e-3,1e-1", "--", "python", "keras_fit.py", "--lr", "{lr}", "--checkpoints", "{out}"),
        long=("outputs=runs/", "--", "python", "keras_fit.py", "--epochs", "15", "--resume", "{resume}"),
        kill_at="Epoch 2/",
        continued="continuing after epoch",
        needs=("keras", "torch"),
        options="`--resume {resume}`: the same",
    ),
    Case(
        name="XGBoost",
        script="xgboost_fit.py",
        sweep=("eta=0.01,0.3", "--", "python", "xgboost_fit.py", "--eta", "{eta}", "--checkpoints", "{out}"),
        long=("outputs=runs/", "--", "python", "xgboost_fit.py", "--rounds", "800", "--xgb_model", "{resume}"),
        kill_at="[30]",
        continued="continuing after",
        needs=("xgboost", "scikit-learn"),
        options="`--xgb_model {resume}`: the same",
    ),
    Case(
        name="LightGBM",
        script="lightgbm_train.py",
        sweep=("lr=0.01,0.3", "--", "python", "lightgbm_train.py", "--learning_rate", "{lr}"),
        needs=("lightgbm", "numpy"),
    ),
    Case(
        name="scikit-learn, verbose",
        script="sklearn_verbose.py",
        sweep=("lr=0.01,0.1", "--", "python", "sklearn_verbose.py", "{lr}"),
        needs=("scikit-learn",),
    ),
    Case(
        name="Ultralytics",
        script="ultralytics_train.py",
        sweep=("lr0=0.001,0.01", "--", "python", "ultralytics_train.py", "--lr0", "{lr0}", "--project", "{out}"),
        long=("outputs=runs/", "--", "python", "ultralytics_train.py", "--epochs", "12", "--resume", "{resume}"),
        kill_at="2/12",
        continued="Resuming training",
        needs=("ultralytics", "torch"),
        options="`--resume {resume}`: the same",
    ),
)


@dataclass(slots=True, kw_only=True)
class Trial:
    """A program in a folder of its own, and the commands that are typed there."""

    case: Case
    folder: Path
    home: Path
    words: tuple[str, ...]
    """Given to `stoker run` and `stoker submit` alike."""
    stoker: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.stoker, *words], cwd=self.folder, env=self._settings(), capture_output=True, text=True,
            timeout=LIMIT_S + 60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [self.stoker, *words], cwd=self.folder, env=self._settings(), stdin=quiet, stdout=quiet, stderr=quiet,
            start_new_session=True,
        )  # fmt: skip

    def _settings(self) -> dict[str, str]:
        return harness.environment_with({"STOKER_HOME": str(self.home), **ONE_THREAD, **self.environment})


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--sources", type=Path, help="folder with checkouts of the programs")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the libraries that they need")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="try only programs so named")
    asked = parser.parse_args()
    bench = harness.begin("first_hour", __doc__.splitlines()[0], asked)
    stoker = bench.peer("stoker")
    if not isinstance(stoker, Installed):
        return bench.finish()
    bench.verdicts = [HEADS]
    faults = 0
    cases = [case for case in CASES if not asked.only or any(name in case.name for name in asked.only)]
    with _fleet(stoker, bench.home("fleet"), is_thorough=not bench.quick) as ours:
        for case in (MINIATURE,) if bench.quick else cases:
            why = _why_not(bench, case, asked.sources, asked.python)
            if why:
                bench.verdicts.append([case.name, why, *[""] * (len(HEADS) - 2)])
                continue
            begun_s = time.monotonic()
            line = _try(bench, stoker, ours, case, asked.sources, asked.python)
            bench.say(f"{' | '.join(line)}  ({time.monotonic() - begun_s:.0f} s)")
            faults += any("none" in word for word in line)
            bench.verdicts.append(line)
    bench.rows.append(
        Row(
            question="programs that lack something",
            against="none",
            unit="",
            ours=Figure.of([float(faults)]),
            theirs=Figure.of([0.0]),
            at_most=0.0,
        )
    )
    return bench.finish()


def _why_not(bench: Benchmark, case: Case, sources: Path | None, python: str) -> str:
    """Return why a program can't be tried here, or nothing; the versions of its libraries are reported."""
    if case.folder and (sources is None or not (sources / case.folder / case.script).exists()):
        return "not in --sources"
    for name in case.needs:
        if name not in bench.versions:
            code = f"from importlib.metadata import version; print(version({name!r}))"
            done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{name} is not installed"
            bench.versions[name] = done.stdout.strip()
    return ""


def _try(bench: Benchmark, stoker: Installed, ours: Fleet, case: Case, sources: Path | None, python: str) -> list[str]:
    """Return the line of one program in the table."""
    home = bench.home(case.name.replace(" ", "_"))
    folder = home / "work"
    original = sources / case.folder if case.folder and sources else PROGRAMS
    if case.folder:
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("runs", "stoker-out", "wikitext-2"))
    else:
        folder.mkdir()
        shutil.copy(original / case.script, folder)
    case.prepare(folder, python)
    shutil.copytree(folder, home / "submitted")
    # A repository of its own, as a clone is: this folder may lie in one that ignores it.
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=home / "submitted", check=False)
    trial = Trial(
        case=case,
        folder=folder,
        home=home / "home",
        words=("--name", folder.parent.name, f"python={python}"),
        stoker=str(stoker.program("stoker")),
        environment={"STOKER_LEDGER": str(home / "ledger")},
    )
    # Most of either is waiting.
    with ThreadPoolExecutor(2) as both:
        here = both.submit(_here, trial, is_thorough=ours.is_thorough)
        there = both.submit(_on_the_fleet, trial, ours)
        return [case.name, _commit(original), *here.result(), there.result(), case.options]


def _here(trial: Trial, *, is_thorough: bool) -> tuple[str, str, str]:
    """Return the curves of the sweep, its best trial, and what follows after the kill of the long run."""
    swept = trial.run("run", *trial.words, *trial.case.sweep)
    if swept.returncode != 0:
        return f"none: {_last_line(swept)}", "none", "none"
    best = next((line for line in swept.stdout.splitlines() if "Best " in line), "none").strip()
    curves = _curves(trial, trial.folder.parent.name) or "none"
    after_kill = "no checkpoints" if not trial.case.long else _after_kill(trial) if is_thorough else "left out"
    return curves, best.partition("Best ")[2] or best, after_kill


def _curves(trial: Trial, name: str) -> str:
    compared = trial.run("compare", name, "--no-plots", "--json")
    trials = [json.loads(line) for line in compared.stdout.splitlines()]
    return ", ".join(sorted({name for trial in trials for name in trial.get("metrics", {})}))


def _after_kill(trial: Trial) -> str:
    """Kill the long run in the middle with everything of it, give the same line again, and say whether it resumed."""
    name = trial.folder.parent.name
    process = trial.start("run", *trial.words, *trial.case.long)
    reached = _until(lambda: _has_checkpoint(trial.home, name, trial.case.kill_at) or process.poll() is not None)
    if process.poll() is not None:
        return "none: it ended before a checkpoint was seen"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if not reached:
        return "none: no checkpoint was seen"
    again = trial.run("run", *trial.words, *trial.case.long)
    if again.returncode != 0:
        return f"none: {_last_line(again)}"
    return _resumed(trial.case, trial.run("logs", name).stdout)


def _resumed(case: Case, log: str) -> str:
    """Return what the program resumed from: Stoker offered it, and the program's own output shows that it was used."""
    line = next((line for line in log.splitlines() if line.startswith("resumes from ")), "")
    if not line:
        return "none: no checkpoint was offered"
    if case.continued not in log or (case.from_start and case.from_start in log):
        return "none: it began again"
    return f"resumed from {line.split()[2].rstrip(':')}"


@dataclass(slots=True, kw_only=True)
class Fleet:
    """A coordinator and its one worker."""

    coordinator: Coordinator
    worker_home: Path
    stoker: str
    is_thorough: bool
    """No smoke run: results are copied from it as well, and the program is killed here, too."""
    worker: subprocess.Popen[bytes] | None = None

    def start_worker(self) -> None:
        self.worker_home.mkdir(exist_ok=True)
        with (self.worker_home / "work.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [self.stoker, "work", "--join", self.coordinator.url, "--name", "bench", "--slots", "1"],
                env=harness.environment_with({"STOKER_HOME": str(self.worker_home), **ONE_THREAD}),
                cwd=self.worker_home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def is_idle(self) -> bool:
        jobs = self.coordinator.get("/v1/status")["jobs"]
        return not any(jobs.get(state) for state in ("pending", "claimed", "running"))

    def stop_worker(self) -> None:
        if self.worker is not None:
            self.worker.send_signal(signal.SIGTERM)
            self.worker.wait(60)


@contextmanager
def _fleet(stoker: Installed, home: Path, *, is_thorough: bool) -> Iterator[Fleet]:
    with fleet.serving(stoker, home) as coordinator:
        ours = Fleet(
            coordinator=coordinator,
            worker_home=home / "worker",
            stoker=str(stoker.program("stoker")),
            is_thorough=is_thorough,
        )
        ours.start_worker()
        try:
            yield ours
        finally:
            ours.stop_worker()


def _on_the_fleet(trial: Trial, ours: Fleet) -> str:
    """Submit the long run once for each thing that is killed, or the sweep of a program without checkpoints."""
    there = Trial(
        case=trial.case,
        folder=trial.folder.with_name("submitted"),
        home=ours.coordinator.home,
        words=trial.words,
        stoker=trial.stoker,
    )
    if not trial.case.long:
        return _submitted(there, trial.folder.parent.name, trial.case.sweep)
    found = [_killed_there(there, ours, what) for what in trial.case.kills]
    return "; ".join(found)


def _submitted(trial: Trial, name: str, words: tuple[str, ...]) -> str:
    submitted = trial.run("submit", "--yes", *trial.words, "--name", name, *trial.case.fleet, *words)
    if submitted.returncode != 0:
        return f"none: {_last_line(submitted)}"
    return _ended(trial, name) or "completed"


def _ended(trial: Trial, name: str) -> str:
    """Wait until a job, or all of a sweep, has ended; return what it lacks then."""
    waited = trial.run("jobs", "wait", name, "--timeout", f"{LIMIT_S:.0f}s", "--json")
    jobs = [json.loads(line) for line in waited.stdout.splitlines()]
    if waited.returncode != 0:
        return f"none: {'; '.join(job['says'] or job['state'] for job in jobs) or _last_line(waited)}"
    return "" if all(job["metrics"] for job in jobs) else "none: it has no curves"


def _killed_there(trial: Trial, ours: Fleet, what: str) -> str:
    """Kill a job's process, or its worker with everything below, and return how the job ended."""
    name = f"{trial.folder.parent.name}-{what}"
    # A job of its own, although the program is the same: the setting makes the difference.
    words = (*trial.words, "--name", name, f"killed={what}", *trial.case.fleet, *trial.case.long)
    submitted = trial.run("submit", "--yes", *words)
    if submitted.returncode != 0:
        return f"none: {_last_line(submitted)}"
    _until(lambda: _has_checkpoint(ours.worker_home, name, trial.case.kill_at) or ours.is_idle())
    if ours.is_idle():
        return "none: it ended before a checkpoint was seen"
    processes = _processes_of(name)
    if what == "worker":
        assert ours.worker is not None
        ours.worker.kill()
        ours.worker.wait()
    for process in processes:
        os.kill(process, signal.SIGKILL)
    if what == "worker":
        ours.start_worker()
    lacks = _ended(trial, name)
    if lacks:
        return lacks
    if ours.is_thorough:
        got = trial.run("get", name, str(trial.folder.with_name(name)))
        if got.returncode != 0 or not any(trial.folder.with_name(name).rglob("*.*")):
            return f"none: no result: {_last_line(got)}"
    return f"{what} killed: {_resumed(trial.case, trial.run('logs', name).stdout)}"


def _has_checkpoint(home: Path, name: str, printed: str) -> bool:
    """Return True if a job's running program has printed something, and a checkpoint of it was kept."""
    for process in _processes_of(name):
        settings = _environment_of(process)
        log = Path(settings.get("STOKER_METRICS", "")).parents[1] / "logs" / "run.log"
        kept = Path(settings.get("STOKER_SCRATCH", "")) / "checkpoints.json"
        if log.is_relative_to(home) and kept.exists() and printed in log.read_text(errors="replace"):
            return True
    return False


def _processes_of(name: str) -> list[int]:
    """Return the processes of a job's program, seen from outside."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _environment_of(int(folder.name)).get("STOKER_JOB_NAME") == name
    ]


def _environment_of(process: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _until(is_so: Callable[[], bool]) -> bool:
    limit_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > limit_s:
            return False
        time.sleep(0.25)
    return True


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1][:120] if lines else f"exit {done.returncode}"


def _commit(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout[:12] if folder != PROGRAMS and done.returncode == 0 else "-"


if __name__ == "__main__":
    sys.exit(main())
