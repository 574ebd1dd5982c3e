"""Installs what Stoker is compared with, each peer in a virtual environment of its own.

A peer is `peers/NAME.in` (what we ask for) and `peers/NAME.txt` (every version that it comes with, compiled from it).
It is installed under the bench folder once and again when its pins change. A peer that can't be installed is told as
such, with the installer's last line; a benchmark then says "not measured" instead of inventing a figure. A smoke run
(`--quick`) installs nothing: it takes the peers that are there, and Stoker from the interpreter that runs it.

    python benchmarks/peers.py                 # install all
    python benchmarks/peers.py joblib doit     # install these
    python benchmarks/peers.py --compile       # pin again after editing a .in file (needs uv)
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
PINS = HERE / "peers"
COOKBOOK = HERE / "cookbook"
DEFAULT_BENCH = CHECKOUT / ".bench"
MARKER = "installed.txt"
NAMES = (
    "joblib",
    "doit",
    "redun",
    "snakemake",
    "kedro",
    "prefect",
    "huggingface_hub",
    "ray",
    "hydra-core",
    "tensorboard",
    "mlflow-skinny",
    "mlflow",
    "aim",
    "huey",
    "procrastinate",
    "submitit",
    "dask-jobqueue",
    "torchx",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A virtual environment that is ready to run."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def version(self, distribution: str) -> str:
        """The version of a distribution in this environment."""
        code = f"from importlib.metadata import version; print(version({distribution!r}))"
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInstalled:
    """A peer that we do not have, and why."""

    name: str
    reason: str


Peer = Installed | NotInstalled


def ensure_peer(name: str, bench: Path = DEFAULT_BENCH) -> Peer:
    """The peer's environment, made if it is missing or its pins have changed."""
    pins = PINS / f"{name}.txt"
    return _ensure(name, bench, ["-r", str(pins)], identity=pins.read_bytes())


def find_peer(name: str, bench: Path = DEFAULT_BENCH) -> Peer:
    """The peer's environment if it is installed in the versions of its pins; nothing is installed."""
    folder = bench / "environments" / name
    if _is_installed(folder, _mark((PINS / f"{name}.txt").read_bytes())):
        return Installed(name=name, folder=folder)
    return NotInstalled(name=name, reason="skipped, since --quick installs nothing")


def borrow_stoker(bench: Path = DEFAULT_BENCH) -> Peer:
    """Stoker and all else that this interpreter has, with the benchmark's cookbook beside it; nothing is installed.

    An environment of its own, so that the cookbook is found as an installed one is; made in a tenth of a second.
    """
    folder = bench / "environments" / "borrowed"
    described = tomllib.loads((COOKBOOK / "pyproject.toml").read_text())["project"]
    mark = _mark(f"{CHECKOUT}\n{sys.prefix}\n{described}".encode())
    if _is_installed(folder, mark):
        return Installed(name="stoker", folder=folder)
    hide(bench)
    venv.create(folder, clear=True, symlinks=True)
    own = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    lent = sysconfig.get_path("purelib")
    # `addsitedir`, not the bare path: what is installed for editing is named by .pth files of that folder
    Path(own, "borrowed.pth").write_text(f"import site; site.addsitedir({lent!r})\n{COOKBOOK / 'src'}\n")
    about = Path(own, f"{described['name'].replace('-', '_')}-{described['version']}.dist-info")
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: {described['version']}\n"
    )
    points = described["entry-points"]["stoker.cookbooks"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (about / "entry_points.txt").write_text(f"[stoker.cookbooks]\n{lines}")
    programs = folder / "bin"
    for program in Path(sysconfig.get_path("scripts")).iterdir():
        if not (programs / program.name).exists():
            (programs / program.name).symlink_to(program)
    command = programs / "stoker"
    command.unlink(missing_ok=True)
    command.write_text(f"#!{programs / 'python'}\nimport sys\nfrom stoker.__main__ import main\n\nsys.exit(main())\n")
    command.chmod(0o755)
    (folder / MARKER).write_text(mark)
    return Installed(name="stoker", folder=folder)


def ensure_stoker(bench: Path = DEFAULT_BENCH) -> Peer:
    """Stoker from this checkout (editable, so never stale) and the benchmark's cookbook, installed as peers are."""
    described = (CHECKOUT / "pyproject.toml", COOKBOOK / "pyproject.toml")
    for file in described:
        if not file.exists():
            return NotInstalled(name="stoker", reason=f"{file.relative_to(CHECKOUT)} is not there")
    wanted = ["-e", f"{CHECKOUT}[postgres,s3]", "-e", str(COOKBOOK)]
    return _ensure("stoker", bench, wanted, identity=b"".join(file.read_bytes() for file in described))


def ensure_launchers(bench: Path = DEFAULT_BENCH) -> Peer:
    """Stoker beside torch and accelerate in one environment, so that all launchers start the same thing.

    By pip, which finds a build of torch for the CPU that lies on the machine; uv would take gigabytes.
    """
    pins = CHECKOUT / "requirements" / "torch.txt"
    wanted = ["-r", str(pins), "accelerate==1.15.0", "-e", str(CHECKOUT)]
    return _ensure("launchers", bench, wanted, identity=pins.read_bytes(), by_pip=True)


def compile_pins(names: Sequence[str]) -> None:
    """Writes `peers/NAME.txt` from `peers/NAME.in`, for every platform and Python 3.11 or later."""
    for name in names:
        asked, pinned = PINS / f"{name}.in", PINS / f"{name}.txt"
        options = ["--quiet", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
        subprocess.run([_uv() or "uv", "pip", "compile", *options, str(asked), "-o", str(pinned)], check=True)


def hide(bench: Path) -> None:
    """Make the bench folder; git does not see it, wherever the caller has put it."""
    bench.mkdir(parents=True, exist_ok=True)
    (bench / ".gitignore").write_text("*\n")


def _mark(identity: bytes) -> str:
    return hashlib.sha256(identity + sys.version.encode()).hexdigest()


def _is_installed(folder: Path, mark: str) -> bool:
    marker = folder / MARKER
    return marker.exists() and marker.read_text() == mark


def _ensure(name: str, bench: Path, wanted: list[str], *, identity: bytes, by_pip: bool = False) -> Peer:
    folder = bench / "environments" / name
    mark = _mark(identity)
    if _is_installed(folder, mark):
        return Installed(name=name, folder=folder)
    hide(bench)
    reason = ""
    # where uv can't see the index that pip is set up for, pip installs
    for uv in (None,) if by_pip or not _uv() else (_uv(), None):
        reason = _run_all(_install_commands(folder, wanted, uv))
        if not reason:
            (folder / MARKER).write_text(mark)
            return Installed(name=name, folder=folder)
    return NotInstalled(name=name, reason=reason)


def _run_all(commands: list[list[str]]) -> str:
    """Run commands in order until one fails; return its last line, or nothing."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            return lines[-1].strip() if lines else f"exit {done.returncode}"
    return ""


def _install_commands(folder: Path, wanted: list[str], uv: str | None) -> list[list[str]]:
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    if uv:
        # compiled ahead: otherwise the first measured run of a peer would pay for writing its bytecode
        return [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *wanted],
        ]
    return [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", "--quiet", *wanted]]


def _uv() -> str | None:
    """uv, on the path or beside this interpreter, where `make` installs it."""
    beside = Path(sysconfig.get_path("scripts"), "uv")
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--bench", type=Path, default=DEFAULT_BENCH, help="folder for environments and scratch data")
    parser.add_argument("--compile", action="store_true", help="pin versions again instead of installing")
    asked = parser.parse_args()
    names = tuple(asked.names) or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no such peer: {', '.join(unknown)}")
    if asked.compile:
        compile_pins(names)
        return 0
    missing = 0
    for name in names:
        peer = ensure_peer(name, asked.bench)
        match peer:
            case Installed():
                print(f"{name:16} {peer.version(name)}")
            case NotInstalled(reason=reason):
                print(f"{name:16} not installed: {reason}")
                missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
