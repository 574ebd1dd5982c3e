"""Does somebody else's training program show curves, a best trial and a resume after kill -9, unchanged?

Each program runs as a sweep of two trials, then once more alone: that run is killed with its `stoker` by kill -9 in the
middle, and the same line is given again. `--sources DIR` names a folder with the checkouts of the programs, by the
names below; one that is not there is said to be missing. Without it, and in the smoke run, a miniature of our own is
tried. Programs that need libraries run with `--python` (default: the interpreter that runs this).

    DIR/nanoGPT          github.com/karpathy/nanoGPT
    DIR/examples         github.com/pytorch/examples
"""

from __future__ import annotations

import array
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import Benchmark, Figure, Row
from peers import Installed

PROGRAMS = Path(__file__).resolve().parent / "first_hour_programs"
TEXT = "the quick brown fox jumps over the lazy dog and runs through the forest again. "
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program: what its sweep and its long run are given after `stoker run`."""

    name: str
    folder: str
    """In the sources; empty: one of ours."""
    script: str
    sweep: tuple[str, ...]
    long: tuple[str, ...] = ()
    """Empty: it has no checkpoints to resume from."""
    kill_at: str = ""
    """The log of the long run has this when it is killed."""
    resumed: str = ""
    """The log of the run after it has this."""
    needs: str = ""
    prepare: Callable[[Path], None] = lambda _folder: None


def _shakespeare(folder: Path) -> None:
    """Write a small data set of our own text where nanoGPT's own script would put its."""
    place, text = folder / "data" / "shakespeare_char", TEXT * 3000
    place.mkdir(parents=True, exist_ok=True)
    number = {char: index for index, char in enumerate(sorted(set(text)))}
    ids = [number[char] for char in text]
    for name, part in (("train", ids[: len(ids) * 9 // 10]), ("val", ids[len(ids) * 9 // 10 :])):
        (place / f"{name}.bin").write_bytes(array.array("H", part).tobytes())
    names = {index: char for char, index in number.items()}
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(number), "itos": names, "stoi": number}))


def _corpus(folder: Path) -> None:
    place = folder / "own_text"
    place.mkdir(exist_ok=True)
    for name in ("train", "valid", "test"):
        (place / f"{name}.txt").write_text(f"{TEXT}\n" * 100)


_NANO = (
    *("python", "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=2"),
    *("--log_interval=10", "--eval_interval=20", "--block_size=32", "--batch_size=4", "--n_layer=2", "--n_head=2"),
    *("--n_embd=32", "--dropout=0.0", "--out_dir=runs", "--always_save_checkpoint=True"),
)
_WORDS = ("--data", "own_text", "--epochs", "1", "--emsize", "16", "--nhid", "16", "--nlayers", "1", "--bptt", "10")
MINIATURE = Case(
    name="a miniature of our own",
    folder="",
    script="miniature.py",
    sweep=("lr=0.1,1", "--", "python", "miniature.py", "--lr", "{lr}", "--steps", "10"),
    long=("outputs=runs/", "--", "python", "miniature.py", "--steps", "100", "--init_from={resume?resume:scratch}"),
    kill_at="step 20:",
    resumed="resumes from runs/ckpt.pt",
)
CASES = (
    MINIATURE,
    Case(
        name="nanoGPT",
        folder="nanoGPT",
        script="train.py",
        sweep=("lr=1e-3,1e-2", "--", *_NANO, "--max_iters=40", "--learning_rate={lr}"),
        long=("outputs=runs/", "--", *_NANO, "--max_iters=600", "--init_from={resume?resume:scratch}"),
        kill_at="step 60:",
        resumed="Resuming training from runs",
        needs="torch",
        prepare=_shakespeare,
    ),
    Case(
        name="PyTorch regression",
        folder="examples/regression",
        script="main.py",
        sweep=("n=1,2", "--", "python", "main.py"),
        needs="torch",
    ),
    Case(
        name="PyTorch word_language_model",
        folder="examples/word_language_model",
        script="main.py",
        sweep=("lr=20,2", "--", "python", "main.py", *_WORDS, "--lr", "{lr}", "--save", "{out}/model.pt"),
        needs="torch",
        prepare=_corpus,
    ),
    Case(
        name="Hugging Face Trainer",
        folder="",
        script="hf_trainer.py",
        sweep=("lr=1e-4,1e-3", "--", "python", "hf_trainer.py", "--lr", "{lr}", "--output_dir", "{out}"),
        long=(
            *("outputs=runs/", "--", "python", "hf_trainer.py", "--steps", "3000"),
            *("--resume_from_checkpoint", "{resume}"),
        ),
        kill_at="'eval_loss'",
        resumed="resumes from runs/checkpoint-",
        needs="transformers",
    ),
    Case(
        name="scikit-learn, verbose",
        folder="",
        script="sklearn_verbose.py",
        sweep=("lr=0.01,0.1", "--", "python", "sklearn_verbose.py", "{lr}"),
        needs="sklearn",
    ),
)


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--sources", type=Path, help="folder with checkouts of the programs")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the libraries that they need")
    asked = parser.parse_args()
    bench = harness.begin("first_hour", __doc__.splitlines()[0], asked)
    stoker = bench.peer("stoker")
    if not isinstance(stoker, Installed):
        return bench.finish()
    bench.verdicts = [["program", "commit", "curves", "best of the sweep", "after kill -9"]]
    faults = 0
    for case in (MINIATURE,) if bench.quick else CASES:
        why = _why_not(case, asked.sources)
        if why:
            bench.verdicts.append([case.name, why, "", "", ""])
            continue
        bench.say(case.name)
        line = _try(bench, stoker, case, asked.sources, asked.python)
        faults += any(word.startswith("none") for word in line)
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


def _why_not(case: Case, sources: Path | None) -> str:
    if case.folder and (sources is None or not (sources / case.folder / case.script).exists()):
        return "not in --sources"
    return f"{case.needs} is not installed" if case.needs and importlib.util.find_spec(case.needs) is None else ""


def _try(bench: Benchmark, stoker: Installed, case: Case, sources: Path | None, python: str) -> list[str]:
    home = bench.home(case.name.replace(" ", "_"))
    folder = home / "work"
    original = PROGRAMS if not case.folder else (sources or PROGRAMS) / case.folder
    folder.mkdir()
    for path in original.iterdir():
        if path.name not in (".git", "runs", "stoker-out"):
            (folder / path.name).symlink_to(path)
    # What is written here must not be written there.
    (folder / "data").unlink(missing_ok=True)
    case.prepare(folder)
    env = {**os.environ, "STOKER_HOME": str(home / "home"), "STOKER_LEDGER": str(home / "ledger")}
    command = [str(stoker.python.parent / "stoker"), "run", "--name", "case", f"python={python}"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    swept = run(*command, *case.sweep)
    if swept.returncode != 0:
        return [case.name, _commit(original), f"none: {swept.stderr.strip().splitlines()[-1][:80]}", "", ""]
    compared = run(command[0], "compare", "case", "--no-plots", "--json")
    trials = [json.loads(line) for line in compared.stdout.splitlines()]
    names = sorted({name for trial in trials for name in trial.get("metrics", {})})
    best = next((line for line in swept.stdout.splitlines() if "Best " in line), "none").strip()
    resumed = "no checkpoints" if not case.long else _killed(case, command, folder, env, home / "home", run)
    return [case.name, _commit(original), ", ".join(names) or "none", best.partition("Best ")[2] or best, resumed]


def _killed(
    case: Case,
    command: list[str],
    folder: Path,
    env: dict[str, str],
    home: Path,
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> str:
    """Kill the long run in the middle with everything of it, give the same line again, and say whether it went on."""
    known = set(home.glob("runs/*"))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, *case.long], cwd=folder, env=env, stdout=quiet, stderr=quiet, start_new_session=True
    )
    limit_s = time.monotonic() + LIMIT_S
    while time.monotonic() < limit_s and process.poll() is None:
        logs = [log for job in set(home.glob("runs/*")) - known for log in job.glob("logs/run.log")]
        if any(case.kill_at in log.read_text(errors="replace") for log in logs):
            break
        time.sleep(0.2)
    # Long enough for a checkpoint to be seen.
    time.sleep(5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = run(*command, *case.long)
    if again.returncode != 0:
        return f"none: {again.stderr.strip().splitlines()[-1][:80]}"
    log = run(command[0], "logs", "case").stdout
    return "resumed" if case.resumed in log else "none: it began again"


def _commit(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout[:12] or "-"


if __name__ == "__main__":
    sys.exit(main())
