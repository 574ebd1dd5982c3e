from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from stoker.jobs.program import ProgramFiles, program_name


class Project:
    """A folder of somebody's code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, **files: str) -> None:
        for name, text in files.items():
            self.put(name, text)

    def put(self, name: str, text: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def found(self, *argv: str, outputs: tuple[str, ...] = ()) -> list[str]:
        found = ProgramFiles(str(self.folder)).of(argv, outputs)
        assert all(os.path.normpath(os.path.join(self.folder, name)) == path for name, path in found.items())
        return sorted(found)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.put("train.py", "import model\nfrom lib import data\ndef later():\n    import lazy\n")
    made.put("model.py", "import torch, os\n")
    made.put("lazy.py")
    made.put("unused.py")
    made.put("lib/__init__.py")
    made.put("lib/data.py", "from . import rows\nfrom .deep.down import x\n")
    made.put("lib/rows.py")
    made.put("lib/deep/__init__.py")
    made.put("lib/deep/down.py", "x = 1")
    return made


TRAIN = [
    "lazy.py", "lib/__init__.py", "lib/data.py", "lib/deep/__init__.py", "lib/deep/down.py", "lib/rows.py",
    "model.py", "train.py",
]  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "train.py"),
        ("python3.12", "-u", "-X", "dev", "./train.py", "--lr", "1"),
        ("/nowhere/bin/python", "train.py"),
        ("uv", "run", "train.py"),
        ("torchrun", "--nproc-per-node=2", "train.py"),
        ("accelerate", "launch", "--config_file=none.yaml", "train.py"),
        ("env", "A=1", "python", "train.py"),
    ],
)
def test_a_script_among_the_words_counts_with_all_that_it_imports_from_the_project(
    project: Project, argv: tuple[str, ...]
) -> None:
    assert project.found(*argv) == TRAIN


def test_a_module_that_is_run_by_its_name_counts_from_the_folder_on(project: Project) -> None:
    project.put("pkg/__init__.py", "import lazy")
    project.put("pkg/run.py", "from pkg.inner import x\nfrom . import sister\nimport model\n")
    project.put("pkg/inner.py")
    project.put("pkg/sister.py")
    expected = ["lazy.py", "model.py", "pkg/__init__.py", "pkg/inner.py", "pkg/run.py", "pkg/sister.py"]
    assert project.found("python", "-m", "pkg.run", "--x") == expected
    assert project.found("torchrun", "-m", "pkg.run") == expected
    project.put("pkg/tool/__main__.py", "from . import part\n")
    project.put("pkg/tool/part.py")
    assert {"pkg/tool/__main__.py", "pkg/tool/part.py", "pkg/__init__.py"} <= set(
        project.found("python", "-m", "pkg.tool")
    )


def test_a_library_in_the_project_counts_also_for_a_script_in_a_folder_of_its_own(project: Project) -> None:
    project.put("scripts/go.py", "import beside\nimport lib.rows\nimport inner.core\n")
    project.put("scripts/beside.py")
    project.put("src/inner/__init__.py")
    project.put("src/inner/core.py")
    found = project.found("python", "scripts/go.py")
    assert found == [
        "lib/__init__.py", "lib/rows.py", "scripts/beside.py", "scripts/go.py", "src/inner/__init__.py",
        "src/inner/core.py",
    ]  # fmt: skip


@pytest.mark.parametrize("argv", [("./run.sh",), ("sh", "run.sh"), ("bash", "-e", "run.sh", "x"), ("./run",)])
def test_a_shell_script_counts_with_what_it_seems_to_run(project: Project, argv: tuple[str, ...]) -> None:
    script = "#!/bin/sh\nset -e\nsource ./setup.sh\npython 'train.py' --config=conf/base.yaml \"$@\"\n"
    project.put("run.sh", script)
    project.put("run", script)
    project.put("setup.sh")
    project.put("conf/base.yaml")
    own = "run" if argv == ("./run",) else "run.sh"
    assert project.found(*argv) == sorted([*TRAIN, "conf/base.yaml", "setup.sh", own])


def test_settings_among_the_words_count_and_data_does_not(project: Project) -> None:
    for name in ("conf.yaml", "ds.json", "a.toml", "data.csv", "weights.bin"):
        project.put(name)
    words = ["--config", "conf.yaml", "--deepspeed=ds.json", "a.toml", "data.csv", "--init=weights.bin", "lib"]
    assert project.found("tool", *words) == ["a.toml", "conf.yaml", "ds.json"]


def test_what_it_writes_is_not_what_it_is(project: Project) -> None:
    project.put("runs/config.json")
    project.put("runs2.json")
    argv = ("tool", "runs/config.json", "runs2.json")
    assert project.found(*argv) == ["runs/config.json", "runs2.json"]
    assert project.found(*argv, outputs=("runs/",)) == ["runs2.json"]
    assert project.found(*argv, outputs=("./runs2.json", "runs")) == []


def test_a_program_in_the_folder_counts_as_it_is(project: Project) -> None:
    (project.folder / "compiled").write_bytes(b"\x7fELF\0\0 train.py\0")
    assert project.found("./compiled", "train") == ["compiled"]
    assert project.found("compiled") == ["compiled"]


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "-m"), ("python", "-m", ""), ("python", "-m", "..."), ("python", "-m", "no.such"), ("python",),
        ("a\0b", "\0"), ("x" * 5000,), ("python", "none.py"), ("", "="), ("python", "-m", "train.py"), ("..",),
    ],
)  # fmt: skip
def test_words_that_are_no_files_give_none(project: Project, argv: tuple[str, ...]) -> None:
    assert project.found(*argv) in ([], TRAIN)


def test_code_that_can_not_be_read_counts_by_its_bytes_and_stops_nobody(project: Project) -> None:
    project.put("odd.py", "print 'python 2'\n")
    (project.folder / "binary.py").write_bytes(b"\xff\0")
    (project.folder / "loop.py").symlink_to("loop.py")
    assert project.found("python", "odd.py", "binary.py", "loop.py") == ["binary.py", "odd.py"]


def test_trials_that_share_words_share_what_was_found(project: Project) -> None:
    files = ProgramFiles(str(project.folder))
    first = files.of(("python", "train.py", "--lr", "1"))
    (project.folder / "train.py").unlink()
    assert files.of(("python", "train.py", "--lr", "2")) == first
    assert files.all == first


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "train.py"), "train"),
        (("python", "-u", "deep/train.py", "other.py"), "train"),
        (("python", "-m", "pkg.mod"), "mod"),
        (("python", "-c", "pass"), "python"),
        (("./train.sh",), "train"),
        (("sh", "train.sh"), "train"),
        (("sh", "-c", "python train.py"), "sh"),
        (("/usr/bin/tool-2",), "tool-2"),
        (("uv", "run", "x.py"), "uv"),
        (("--",), "program"),
        (("a b/c d",), "c_d"),
        (("x" * 100,), "x" * 60),
        (("",), "program"),
    ],
)
def test_a_job_is_called_after_its_script(argv: tuple[str, ...], name: str) -> None:
    assert program_name(argv) == name
