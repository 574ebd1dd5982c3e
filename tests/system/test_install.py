"""The built wheel in an empty environment: what a plain install runs, what it names as missing, what others import.

And the source archive: what it holds, and that its tests run where it is unpacked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LETTERS = ROOT / "tests" / "cookbooks" / "letters"
LIMIT_S = 300
MOST_DISTRIBUTIONS = 12
MOST_BYTES = 40 << 20


def built(project: Path, folder: Path, target: str = "wheel") -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=LIMIT_S)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the two wheels and nothing but what they require."""
    folder = tmp_path_factory.mktemp("install")
    wheels = [built(ROOT, folder / "stoker"), built(LETTERS, folder / "letters")]
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or "uv"
    made = folder / "env"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, made], check=True, timeout=LIMIT_S)
    pinned: list[str | Path] = ["-c", ROOT / "requirements" / "dev.txt", *wheels]
    into = made / "bin" / "python"
    # From the cache of uv if it has everything, as after `make test`; else from the index, which pip may see.
    ways: tuple[list[str | Path], ...] = (
        [uv, "pip", "install", "--quiet", "--python", into, "--offline", *pinned],
        [uv, "pip", "install", "--quiet", "--python", into, *pinned],
        [sys.executable, "-m", "pip", "--python", into, "install", "--quiet", *pinned],
    )
    is_installed = any(not subprocess.run(way, timeout=LIMIT_S, check=False).returncode for way in ways)
    assert is_installed, "neither uv nor pip could install the wheels"
    return made


@pytest.fixture
def outside(plain: Path, tmp_path: Path):
    """Return what runs a program of that environment in an empty folder with an empty environment."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{plain / 'bin'}:{os.defpath}",
            "HOME": str(tmp_path),
            "STOKER_HOME": str(tmp_path / "home"),
            "STOKER_LEDGER": str(tmp_path / "ledger"),
            "LANG": "C.UTF-8",
        }
        return subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    return run


def test_a_plain_install_is_small(plain: Path):
    (packages,) = plain.glob("lib/python3*/site-packages")
    assert len(list(packages.glob("*.dist-info"))) - 1 <= MOST_DISTRIBUTIONS, "the cookbook is not part of it"
    size = sum(path.stat().st_size for path in packages.rglob("*") if "__pycache__" not in path.parts)
    assert size <= MOST_BYTES


ON_ONE_MACHINE = """
jobs
explain true
jobs show true
jobs wait true
status
logs true
get true out
compare true
recipes
doctor
machines
store du
store verify
config show -- true
submit --help
serve --help
join --help
pause
pause --off
work --help
admin simulate --help
"""


def test_a_plain_install_does_everything_on_one_machine(outside):
    assert outside("stoker", "run", "--", "true").returncode == 0
    done = {words: outside("stoker", *words.split()) for words in ON_ONE_MACHINE.strip().splitlines()}
    assert {words: one.stderr for words, one in done.items() if one.returncode} == {}


def test_a_missing_extra_is_named_with_the_line_to_type(outside):
    commands = {
        "submit -- true": "fleet",
        "join ABCD-EFGH@127.0.0.1": "fleet",
        "serve": "serve",
        "admin db check": "serve",
    }
    for words, extra in commands.items():
        done = outside("stoker", *words.split())
        assert done.returncode == 29, done.stdout + done.stderr
        assert "is not installed" in done.stderr
        assert f"-m pip install 'stoker[{extra}]'" in done.stderr


def test_the_client_names_its_extra(outside):
    done = outside("python", "-c", "from stoker import Client")
    assert done.returncode == 1
    assert "ImportError: stoker.Client: pydantic is not installed" in done.stderr
    assert "stoker[fleet]" in done.stderr


def test_a_cookbook_in_a_package_of_its_own_is_found_and_runs(outside, tmp_path: Path):
    (tmp_path / "text.txt").write_text("abba 1")
    assert "letters/count" in outside("stoker", "recipes").stdout
    done = outside("stoker", "run", "letters/count", "text=text.txt", "--out", "made")
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in (tmp_path / "made").rglob("*.json")]
    assert {"a": 2, "b": 2} in found
    assert "nothing ran" in outside("stoker", "run", "letters/count", "text=text.txt", "--out", "made").stdout


def test_a_program_imports_the_trainer_and_the_gang(outside):
    assert (
        outside("stoker", "run", "--", "python", "-c", "import stoker_trainer as t; t.step(1, loss=1.0)").returncode
        == 0
    )
    imported = "from stoker.gang import Buffer, Gang, Phase, RankConfig, RendezvousClient, RendezvousHost, this_rank"
    assert outside("python", "-c", imported).returncode == 0


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the unpacked source archive."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built(ROOT, folder / "made", "sdist")) as archive:
        # It is ours, and early releases of 3.11 know no filter.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    (project,) = folder.glob("stoker-*")
    return project


def test_the_source_archive_holds_what_git_has(unpacked: Path):
    if not (ROOT / ".git").exists():
        pytest.skip("this is an unpacked archive: git has nothing to compare with")
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert held - {"PKG-INFO"} == tracked


@pytest.mark.slow
def test_the_source_archive_runs_its_tests(unpacked: Path):
    tests = [f"tests/{part}" for part in ("house", "unit/core", "unit/config", "unit/protocol")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", "2", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    done = subprocess.run(
        command, cwd=unpacked, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_only_python_versions_that_were_tried_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [line.split(" :: ")[-1] for line in project["classifiers"] if "Python :: 3." in line]
    guide = (ROOT / "docs" / "guides" / "install.md").read_text()
    assert declared == re.findall(r"^\| Python (3\.\d+)", guide, re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert declared == workflow["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_every_library_that_the_code_imports_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*declared["dependencies"], *chain.from_iterable(declared["optional-dependencies"].values())]
    names = {line.replace("[", " ").replace(">", " ").replace("<", " ").split()[0].lower() for line in named}
    providers = metadata.packages_distributions()
    # A plug-in runs in an interpreter that has its runtime, and says what is not installed there.
    # Kernels are imported only if Triton is there: it comes with the builds of torch for a GPU.
    kernels = {"gpu_kernels.py", "packed_attention.py"}
    files = [
        path for path in (ROOT / "src").rglob("*.py") if path.parent.name != "plugins" and path.name not in kernels
    ]
    imported = {name for path in files for name in imports_of(path)}
    missing = {
        name: providers[name]
        for name in imported - set(sys.stdlib_module_names) - {"stoker", "stoker_trainer"}
        if name in providers and not {one.lower().replace("_", "-") for one in providers[name]} & names
    }
    assert missing == {}


def imports_of(path: Path) -> set[str]:
    """Return the packages that a file imports, and a few words of texts that read like an import."""
    text = path.read_text("utf-8")
    found = set(re.findall(r"^\s*from (\w+)[\w.]* import\b", text, re.MULTILINE))
    for names in re.findall(r"^\s*import (\w[\w., ]*)", text, re.MULTILINE):
        found |= {name.split()[0].partition(".")[0] for name in names.split(",") if name.strip()}
    return found
