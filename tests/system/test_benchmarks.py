"""Every benchmark runs: with tiny sizes, beside the peers that are installed, by the interpreter of the tests."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.shell import PATIENCE_S
from tests.system.warm import is_warm_run, make_warm_python

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
INSTALLED = ROOT / ".bench" / "environments"
SLOW_PEERS = {"aim", "huggingface_hub", "mlflow", "ray", "redun", "snakemake"}
"""They take seconds to start. `make soak` has them, too."""
SLOW = {
    "adapters_cpu",
    "curves_peers",
    "gang_launch",
    "security_cases",
}
"""Their smallest run imports torch, starts a browser, or makes a hundred attacks: 4 s of a processor and more, and that
of others about 3 s at most. `make soak` has them; one case of `security_cases` runs here, too.
"""


def _names() -> tuple[str, ...]:
    """Read what `run_all.py` runs: it can't be imported from here, since its neighbours are scripts of that folder."""
    tree = ast.parse((BENCHMARKS / "run_all.py").read_text())
    values = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAMES"
    )
    names: tuple[str, ...] = ast.literal_eval(next(values))
    return names


NAMES = _names()
NO_QUESTION = {
    "above_bare",
    "adapters_cases",
    "browser",
    "shared_process_cases",
    "fault_cases",
    "fetchers",
    "fetching",
    "fleet",
    "harness",
    "machine",
    "nginx",
    "peers",
    "recordings",
    "results",
    "run_all",
    "screens_scene",
    "security_requests",
    "security_scene",
    "security_workers",
    "terminal",
    "vram_cases",
}
"""What the benchmarks share."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for scratch data, with the peers that are installed in this checkout.

    Stoker's commands and the scripts of its side start warm: a smoke run would only wait for imports.
    """
    folder = tmp_path_factory.mktemp("bench")
    (folder / "environments").mkdir()
    for peer in INSTALLED.iterdir() if INSTALLED.is_dir() else ():
        if peer.name not in ("stoker", "borrowed") and not (is_warm_run() and peer.name in SLOW_PEERS):
            (folder / "environments" / peer.name).symlink_to(peer)
    if not is_warm_run():
        return folder
    code = f"import peers; peers.borrow_stoker(peers.Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=True)
    borrowed = folder / "environments" / "borrowed"
    own = [Path(path) for path in borrowed.glob("lib/python*/site-packages")]
    python = borrowed / "bin" / "python"
    cold = python.with_name("python-cold")
    python.rename(cold)
    make_warm_python(python, cold=cold, path=[*own, BENCHMARKS / "cookbook" / "src"])
    make_warm_python(folder / "python", cold=Path(sys.executable), path=[])
    return folder


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in NAMES])
def test_a_benchmark_runs_and_says_what_it_measured(name: str, bench: Path) -> None:
    answer = asked(name, bench)
    measured = [row for row in answer["rows"] if row["ours"] is not None]
    missing = {row["why_missing"] for row in answer["rows"] if row["ours"] is None}
    if not measured and missing and all("not installed" in reason for reason in missing):
        pytest.skip("; ".join(sorted(missing)))
    assert measured, answer
    assert {row["verdict"] for row in answer["rows"]} == {"-"}, "a smoke run judges nothing"


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("adapters_nf4.py", "nf4-512"),
        pytest.param("adapters_general.py", "gpt2-together", marks=pytest.mark.slow),
        pytest.param("adapters_company.py", "8x512", marks=pytest.mark.slow),
        pytest.param("adapters_peft.py", "eager-bf16", marks=pytest.mark.slow),
        pytest.param("adapters_run.py", "nf4-512", marks=pytest.mark.slow),
    ],
)
def test_a_side_that_measures_on_a_card_starts_on_the_cpu(script: str, part: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    argv = [sys.executable, str(BENCHMARKS / "sides" / script), str(tmp_path / "out.json"), "--tiny", "--only", part]
    bases = ["--base", str(tmp_path / "base")] if script in ("adapters_company.py", "adapters_run.py") else []
    done = subprocess.run([*argv, *bases], capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


_LETTING_THROUGH = """
import sys
import security_cases
from security_scene import Tried
tried = Tried(what="a guess", through="it opened")
security_cases.CASES[8] = ("wrong tokens", lambda scene: iter((tried, Tried(what="another"))))
sys.exit(security_cases.main())
"""


def test_a_smoke_run_of_the_security_cases_fails_if_one_attack_is_not_refused(bench: Path) -> None:
    words = ["--quick", "--json", "--case", "8", "--bench", str(bench)]
    done = subprocess.run(
        [sys.executable, "-c", _LETTING_THROUGH, *words],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE_S,
        check=False,
    )
    answer = json.loads(done.stdout)
    if any("not installed" in row["why_missing"] for row in answer["rows"]):
        pytest.skip(answer["rows"][0]["why_missing"])
    assert done.returncode == 1, done.stderr
    assert "2 tried, 1 refused" in done.stderr
    assert "NOT REFUSED: a guess: it opened" in done.stderr


def test_every_question_is_asked_when_all_are() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} - NO_QUESTION == set(NAMES)
    assert set(NAMES) >= SLOW


def test_every_name_that_a_benchmark_takes_from_stoker_is_there() -> None:
    """Also those that a smoke run does not reach: what is measured where there is a GPU, or beside a peer."""
    lost = [
        f"{path.relative_to(BENCHMARKS)}:{node.lineno}: {node.module}.{taken.name}"
        for path in sorted(BENCHMARKS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("stoker", "tests")
        for taken in node.names
        if not _is_there(str(node.module), taken.name)
    ]
    assert not lost


def _is_there(module: str, name: str) -> bool:
    """Read the module instead of importing it: some import torch."""
    place = ROOT.joinpath("src" if module.startswith("stoker") else "", *module.split("."))
    if (place / f"{name}.py").exists() or (place / name).is_dir():
        return True
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return file.exists() and name in _bound_in(file)


@functools.cache
def _bound_in(file: Path) -> frozenset[str]:
    """Return the names that a module binds, in whatever way."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return frozenset(found)


def test_a_peer_that_is_not_installed_is_skipped_with_its_name(tmp_path: Path) -> None:
    reasons = [row["why_missing"] for row in asked("compose", tmp_path)["rows"]]
    assert reasons
    assert all(reason == "hydra-core is not installed: skipped, since --quick installs nothing" for reason in reasons)


def test_a_benchmark_that_fails_is_recorded_as_failed_and_the_next_one_follows(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    before = json.loads((copy / "results.json").read_text())["gang_gpu"]["rows"]
    (copy / "gang_gpu.py").write_text('"""How soon?"""\nraise RuntimeError("broken")\n')
    (copy / "detection.py").write_text('"""How long?"""\nimport time\ntime.sleep(60)\n')
    words = ["--record", "--limit", "5", "--bench", str(tmp_path / "bench"), "gang_gpu", "detection", "gpu_tests"]
    done = subprocess.run(
        [sys.executable, copy / "run_all.py", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    kept, page = json.loads((copy / "results.json").read_text()), (copy / "RESULTS.md").read_text()
    assert kept["gang_gpu"]["failed"]["reason"] == "it ended with exit 1 and no answer"
    assert kept["gang_gpu"]["rows"] == before
    assert "it ended with exit 1 and no answer. The figures below are older." in page
    assert kept["detection"]["failed"]["reason"] == "it took longer than 5 s"
    assert "failed" not in kept["gpu_tests"]
    assert "gpu_tests: What do the tests say" in done.stdout


def asked(name: str, bench: Path) -> dict[str, Any]:
    """Return what a smoke run of one benchmark answers."""
    python = bench / "python" if (bench / "python").exists() else sys.executable
    command = [python, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", "--bench", str(bench)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def copied(folder: Path) -> Path:
    """Copy what `run_all.py` and a benchmark of recorded figures need, and the results that are kept."""
    copy = folder / "benchmarks"
    (copy / "recorded").mkdir(parents=True)
    (copy / "sides").mkdir()
    for path in (*BENCHMARKS.glob("*.py"), BENCHMARKS / "results.json"):
        (copy / path.name).write_bytes(path.read_bytes())
    for path in (BENCHMARKS / "recorded").iterdir():
        (copy / "recorded" / path.name).write_bytes(path.read_bytes())
    return copy
