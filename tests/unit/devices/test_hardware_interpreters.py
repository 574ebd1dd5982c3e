from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.capability import MachineInterpreter
from stoker.devices.detection import ask_torch, read_interpreter, read_interpreters, torch_in
from stoker.host.command_runner import SubprocessRunner

VERSION_FILES = {
    "cuda": "__version__ = '2.8.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
    "older": '__version__ = "1.13.1+cu117"\ndebug = False\ncuda = "11.7"\nhip = None\n',
    "rocm": "__version__ = '2.5.0+rocm6.2'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.2.41133'\n",
    "cpu": "__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
}


def environment(at: Path, *, version: str = "3.11.7", torch: str = "", dist_info: str = "") -> Path:
    """Lay out a virtual environment as tools do, without a Python in it."""
    packages = at / "lib" / f"python{'.'.join(version.split('.')[:2])}" / "site-packages"
    packages.mkdir(parents=True)
    (at / "bin").mkdir()
    (at / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n")
    if torch:
        (packages / "torch").mkdir()
        (packages / "torch" / "version.py").write_text(torch)
    if dist_info:
        (packages / dist_info).mkdir()
    return at / "bin" / "python"


@pytest.mark.parametrize(
    ("name", "version", "built"),
    [
        ("cuda", "2.8.0+cu128", "12.8"),
        ("older", "1.13.1+cu117", "11.7"),
        ("rocm", "2.5.0+rocm6.2", "6.2.41133"),
        ("cpu", "2.8.0+cpu", ""),
    ],
    ids=str,
)
def test_a_torch_says_what_it_was_built_for_in_its_files(tmp_path: Path, name: str, version: str, built: str) -> None:
    python = environment(tmp_path / "v", torch=VERSION_FILES[name])
    assert read_interpreter(str(python), "") == MachineInterpreter(
        path=str(python), version="3.11.7", torch=version, torch_cuda=built
    )


def test_without_that_file_the_name_of_its_record_tells_the_version(tmp_path: Path) -> None:
    python = environment(tmp_path / "v", dist_info="torch-2.4.1+cu121.dist-info")
    assert read_interpreter(str(python), "").torch == "2.4.1+cu121"


def test_another_package_whose_name_begins_alike_is_not_torch(tmp_path: Path) -> None:
    python = environment(tmp_path / "v", dist_info="torch_geometric-2.5.dist-info")
    read = read_interpreter(str(python), "")
    assert (read.torch, read.why) == ("", "torch is not among its packages")


def test_files_are_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(VERSION_FILES["cuda"])
    python = environment(tmp_path / "v", torch="x")
    file = tmp_path / "v" / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
    file.unlink()
    file.symlink_to(tmp_path / "kept.py")
    assert read_interpreter(str(python), "").torch_cuda == "12.8"


@pytest.mark.parametrize(
    "text", ["", "\0\xff", "__version__ = 3\n", "__version__ = '"], ids=["empty", "bytes", "number", "cut"]
)
def test_a_broken_file_of_torch_is_no_torch(tmp_path: Path, text: str) -> None:
    assert read_interpreter(str(environment(tmp_path / "v", torch=text or " ")), "").torch == ""


def test_an_environment_is_looked_at_once_however_many_names_lead_to_it(tmp_path: Path) -> None:
    python = environment(tmp_path / "v")
    (tmp_path / "v" / "bin" / "python3").symlink_to(python)
    (tmp_path / "link").symlink_to(tmp_path / "v")
    paths = [str(python), str(tmp_path / "v" / "bin" / "python3"), str(tmp_path / "link" / "bin" / "python"), ""]
    assert [one.path for one in read_interpreters(paths, "")] == [str(python)]


def test_two_pythons_of_one_folder_are_two(tmp_path: Path) -> None:
    for name in ("python3.11", "python3.12"):
        (tmp_path / name).write_text("")
    (tmp_path / "python3").symlink_to("python3.12")
    paths = [str(tmp_path / name) for name in ("python3", "python3.11", "python3.12")]
    assert [one.version for one in read_interpreters(paths, "")] == ["3.12", "3.11"]


def test_an_installed_python_and_the_packages_of_its_user_are_found(tmp_path: Path) -> None:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    python = tmp_path / "usr" / "bin" / "python3"
    (tmp_path / "usr" / "bin" / "python3.12").write_text("")
    python.symlink_to("python3.12")
    packages = tmp_path / "home" / ".local" / "lib" / "python3.12" / "site-packages" / "torch"
    packages.mkdir(parents=True)
    (packages / "version.py").write_text(VERSION_FILES["cuda"])
    read = read_interpreter(str(python), str(tmp_path / "home"))
    assert (read.version, read.torch) == ("3.12", "2.8.0+cu128")
    assert read_interpreter(str(python), "").why == "its packages were not found"


def test_our_own_python_is_known_exactly() -> None:
    read = read_interpreter(sys.executable, "")
    assert read.version == ".".join(map(str, sys.version_info[:3]))


def test_a_python_whose_files_tell_nothing_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "from . import version\n__version__ = version.__version__\n"
        "class cuda:\n    is_available = staticmethod(lambda: False)\nbackends = None\n"
    )
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.9'\ncuda = '12.9'\nhip = None\n")
    ask = SubprocessRunner({"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    unknown = MachineInterpreter(path=sys.executable, version="3.11", why="torch is not among its packages")
    asked = ask_torch(unknown, ask)
    assert (asked.torch, asked.torch_cuda, asked.why) == ("2.9.9", "12.9", "")
    gone = ask_torch(MachineInterpreter(path="/no/python", version=""), ask)
    assert (gone.torch, gone.why) == ("", "import of torch: no output")


def test_torch_is_read_and_never_imported(tmp_path: Path) -> None:
    trap = tmp_path / "torch"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('imported')\n")
    (trap / "version.py").write_text(VERSION_FILES["cuda"])
    assert torch_in([str(tmp_path)]) == ("2.8.0+cu128", "12.8")


@pytest.mark.slow
def test_a_real_environment_is_laid_out_as_we_think(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    read = read_interpreter(str(tmp_path / "v" / "bin" / "python"), "")
    assert read.version == ".".join(map(str, sys.version_info[:3]))
    assert read.why == "torch is not among its packages"
