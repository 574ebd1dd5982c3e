"""Which files belong to an environment, and what changes its digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import BadInput
from stoker.jobs.pack.environment_files import find_environment, gather, named, without_folders

PYPROJECT = '[project]\nname = "study"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["alpha"]\n'
LOCK = """\
version = 1
requires-python = ">=3.10"

[[package]]
name = "mine"
source = { editable = "libs/mine" }

[[package]]
name = "study"
source = { virtual = "." }

[[package]]
name = "wheeled"
source = { path = "wheels/wheeled-1.0-py3-none-any.whl" }
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".").replace("_dash_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(
        tmp_path,
        pyproject_dot_toml=PYPROJECT,
        uv_dot_lock=LOCK,
        libs__mine__pyproject_dot_toml='[project]\nname = "mine"\nversion = "1"\n',
    )
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/wheeled-1.0-py3-none-any.whl").write_bytes(b"wheel")
    return tmp_path


def test_a_lock_needs_the_project_files_of_all_local_packages_and_archives_beside_it(project: Path) -> None:
    found = gather(str(project), "uv.lock")
    assert found.files == (
        "libs/mine/pyproject.toml",
        "pyproject.toml",
        "uv.lock",
        "wheels/wheeled-1.0-py3-none-any.whl",
    )
    assert found.local == ("libs/mine",)
    assert found.python == ">=3.10"
    assert found == gather(str(project), "uv.lock")


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"pyproject_dot_toml": PYPROJECT + "[tool.ruff]\nline-length = 100\n"}, False),
        ({"pyproject_dot_toml": PYPROJECT.replace('version = "1"', 'version = "2"\ndescription = "new"')}, False),
        ({"pyproject_dot_toml": PYPROJECT + '[dependency-groups]\ndev = ["pytest"]\n'}, True),
        ({"pyproject_dot_toml": PYPROJECT + "[tool.uv]\nno-build = true\n"}, True),
        ({"uv_dot_lock": LOCK + "\n"}, True),
        ({"_dot_python_dash_version": "3.11.7\n"}, True),
        ({"libs__mine__pyproject_dot_toml": '[project]\nname = "mine"\ndependencies = ["beta"]\n'}, True),
        ({"train_dot_py": "print(1)\n"}, False),
        ({"uv_dot_toml": "no-build = true\n"}, True),
    ],
    ids=["ruff", "version", "group", "tool-uv", "lock", "python-version", "member", "code", "uv-toml"],
)
def test_only_what_changes_an_installation_changes_the_digest(
    project: Path, change: dict[str, str], is_other: bool
) -> None:
    before = gather(str(project), "uv.lock").digest
    write(project, **change)
    assert (gather(str(project), "uv.lock").digest != before) is is_other


def test_the_wish_for_a_python_comes_from_whoever_asks_then_the_pin_then_the_lock(project: Path) -> None:
    assert gather(str(project), "uv.lock", python="3.12").python == "3.12"
    write(project, _dot_python_dash_version="# pinned\n3.11.7\n")
    assert gather(str(project), "uv.lock").python == "3.11"
    assert gather(str(project), "uv.lock", python="3.12").python == "3.12"
    assert len({gather(str(project), "uv.lock", python=one).digest for one in ("3.11", "3.12")}) == 2


def test_requirements_bring_includes_archives_links_and_local_packages(project: Path) -> None:
    write(
        project,
        requirements_dot_txt=(
            "# first\n-r base.txt\n-c=pins.txt\n--find-links wheels\n-e ./libs/mine[fast]\n"
            "torch==2.0 \\\n  --hash=sha256:00\nname @ https://host.invalid/x.whl\n"
        ),
        base_dot_txt="--requirement deep/more.txt\n",
        deep__more_dot_txt="-r ../base.txt\nnumpy # not -r this.txt\n",
        pins_dot_txt="numpy==1.0\n",
    )
    found = gather(str(project), "requirements.txt")
    assert found.files == (
        "base.txt",
        "deep/more.txt",
        "libs/mine/pyproject.toml",
        "pins.txt",
        "requirements.txt",
        "wheels/wheeled-1.0-py3-none-any.whl",
    )
    assert (found.local, found.projects, found.extras) == (("libs/mine",), ("libs/mine/pyproject.toml",), ("fast",))


def test_local_folders_are_left_out_of_what_is_installed() -> None:
    text = "alpha\n-e .\n./libs/mine\n./wheels/x-1.0-py3-none-any.whl\n-e git+https://host.invalid/x\n"
    assert without_folders(text) == (
        "alpha\n# -e .\n# ./libs/mine\n./wheels/x-1.0-py3-none-any.whl\n-e git+https://host.invalid/x\n"
    )


@pytest.mark.parametrize(
    ("path", "files", "message"),
    [
        ("uv.lock", {"uv_dot_lock": "version = 1\n"}, "file not found: pyproject.toml, and uv.lock needs it"),
        ("none/uv.lock", {}, "file not found: none/uv.lock"),
        ("setup.py", {}, "setup.py is not an environment file"),
        ("requirements.txt", {"requirements_dot_txt": "-r gone.txt\n"}, "file not found: gone.txt"),
        ("requirements.txt", {"requirements_dot_txt": "-r ../up.txt\n"}, "../up.txt in requirements.txt is outside"),
        (
            "requirements.txt",
            {"requirements_dot_txt": "-e .\n"},
            "file not found: pyproject.toml, and requirements.txt",
        ),
        (
            "pyproject.toml",
            {"pyproject_dot_toml": '[project]\nname = "x"\ndynamic = ["dependencies"]\n'},
            "the dependencies in pyproject.toml are dynamic",
        ),
        ("pyproject.toml", {"pyproject_dot_toml": "[project\n"}, "pyproject.toml is no TOML"),
        ("pyproject.toml", {"pyproject_dot_toml": "project = 3\n"}, "pyproject.toml is not a valid pyproject.toml"),
        (
            "pyproject.toml",
            {"pyproject_dot_toml": '[project]\nname="x"\n[tool.uv.sources]\nlib = { path = "lib" }\n'},
            "lib in pyproject.toml is a folder of the project",
        ),
    ],
    ids=["no-project", "missing", "setup", "no-include", "outside", "editable", "dynamic", "toml", "odd", "folder"],
)
def test_what_is_missing_or_can_not_travel_is_told_in_one_line(
    tmp_path: Path, path: str, files: dict[str, str], message: str
) -> None:
    write(tmp_path, **files)
    with pytest.raises(BadInput) as told:
        gather(str(tmp_path), path)
    assert told.value.message.startswith(message)


def test_extras_stand_in_brackets_behind_the_file() -> None:
    assert named("uv.lock[cuda, plots,cuda]") == ("uv.lock", ("cuda", "plots"))
    assert named("sub/uv.lock") == ("sub/uv.lock", ())
    with pytest.raises(BadInput):
        named("uv.lock[")


def test_what_the_store_shows_of_a_tree_is_the_same_environment(project: Path, tmp_path: Path) -> None:
    whole = gather(str(project), "uv.lock")
    lock = project / "uv.lock"
    lock.rename(tmp_path / "blob")
    lock.symlink_to(tmp_path / "blob")
    assert gather(str(project), "uv.lock") == whole


@pytest.mark.parametrize("path", ["/etc/requirements.txt", "../requirements.txt", "a/../../requirements.txt"])
def test_no_path_leads_out_of_the_project(project: Path, path: str) -> None:
    with pytest.raises(BadInput, match="outside of the project"):
        gather(str(project), path)


@pytest.mark.parametrize("line", ["-r file:///etc/x", "-c file:///etc/x", "--requirement=FILE:///etc/x"], ids=range(3))
def test_no_file_of_the_machine_itself_is_included(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    with pytest.raises(BadInput, match="is not supported"):
        gather(str(tmp_path), "requirements.txt")


POETRY = '[tool.poetry]\nname = "x"\n[tool.poetry.dependencies]\npython = "^3.11"\ntorch = "^2.5"\n'
CONDA = "name: x\nchannels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - pytorch\n  - pip:\n      - wandb\n"


@pytest.mark.parametrize(
    ("files", "path", "hint"),
    [
        ({}, "", ""),
        ({"uv.lock": "", "requirements.txt": "", "poetry.lock": ""}, "uv.lock", ""),
        ({"requirements.txt": "torch", "environment.yml": CONDA}, "requirements.txt", ""),
        ({"poetry.lock": "", "pyproject.toml": POETRY}, "poetry.lock", "poetry export"),
        ({"Pipfile.lock": "{}"}, "Pipfile.lock", "pipenv requirements"),
        ({"environment.yml": CONDA}, "environment.yml", "python=PATH"),
        ({"environment.yaml": CONDA}, "environment.yaml", "python=PATH"),
        ({"pyproject.toml": '[project]\nname = "x"\ndependencies = ["torch"]\n'}, "pyproject.toml", ""),
        ({"pyproject.toml": POETRY}, "pyproject.toml", "Poetry: run poetry export"),
        ({"pyproject.toml": '[project]\nname = "x"\n'}, "", ""),
        ({"pyproject.toml": "[tool.ruff]\n"}, "", ""),
        ({"pyproject.toml": "project = 3\ntool = 4\n"}, "", ""),
        ({"pyproject.toml": "[project\n"}, "", ""),
        ({"pyproject.toml": "\ufeff\udcff"}, "", ""),
    ],
    ids=str,
)
def test_the_file_with_a_projects_packages_is_found(
    tmp_path: Path, files: dict[str, str], path: str, hint: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    found = find_environment(str(tmp_path))
    assert (found.path if found else "") == path
    assert found is None or (hint in found.hint and bool(found.hint) == bool(hint))


@pytest.mark.parametrize(("path", "hint"), [("poetry.lock", "poetry export"), ("environment.yml", "requirements.txt")])
def test_a_file_of_another_tool_is_refused_with_what_to_do(tmp_path: Path, path: str, hint: str) -> None:
    (tmp_path / path).write_text("")
    with pytest.raises(BadInput, match="is not an environment file") as raised:
        gather(str(tmp_path), path)
    assert hint in raised.value.hint
