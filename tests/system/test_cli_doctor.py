"""`stoker doctor`, `preflight` and `gpu-preflight` through real processes, on invented machines and on this one."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.fakes.small_torch import TORCH
from tests.system.shell import Shell, alive, descendants, finish, wait_until

FIELDS = ["cuda", "cuda_version", "metal", "rocm", "rocm_version", "wgpu", "any_available"]
LABEL = "faked by STOKER_GPU_FAKE"


def environment_with(torch: str, folder: Path) -> Path:
    """Make a virtual environment whose torch is this text."""
    prefix = folder / "venv"
    packages = prefix / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    home = Path(sys.executable).parent
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.{sys.version_info.minor}.0\n")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text(torch)
    (packages / "torch" / "version.py").write_text("__version__ = '9.9'\ncuda = '12.0'\nhip = None\n")
    return prefix


def test_everything_that_matters_is_on_one_screen_and_warnings_are_no_failure(shell: Shell) -> None:
    done = shell.stoker("doctor", STOKER_GPU_FAKE="none")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) <= 24
    named = {line[2:].split("  ")[0] for line in lines if line[:2] in ("✓ ", "! ", "✗ ")}
    assert {"cpu", "memory", "disk", "containment", "clock", "port 7717", "gpu", "torch"} <= named
    assert not (shell.home / "store").exists()


def test_the_json_is_one_object_with_the_documented_fields(shell: Shell) -> None:
    done = shell.stoker("doctor", "--json", "--require", "cuda,gpu", STOKER_GPU_FAKE="cuda:2x24GiB")
    (told,) = done.objects()
    assert done.code == 0
    assert " ".join(told) == (
        "format stoker_version is_ready required missing is_fake label checks smoke gang capability"
    )
    assert told["gang"] is None
    assert (told["is_ready"], told["required"], told["missing"]) == (True, ["cuda", "gpu"], [])
    assert (told["is_fake"], told["label"]) == (True, LABEL)
    assert all(set(check) == {"name", "verdict", "message", "hint"} for check in told["checks"])
    assert {check["verdict"] for check in told["checks"]} <= {"ok", "warn", "bad"}
    devices = told["capability"]["devices"]
    assert [one["total_bytes"] for one in devices] == [24 * 1024**3] * 2
    assert all(one["is_fake"] for one in devices)
    assert len({one["uuid"] for one in devices}) == 2
    assert {key: devices[0][key]["verdict"] for key in ("installed", "visible", "usable")} == {
        "installed": "yes",
        "visible": "yes",
        "usable": "yes",
    }


@pytest.mark.parametrize(
    ("fake", "words", "lacking"),
    [
        ("none", ["gpu", "cuda"], ["gpu", "cuda"]),
        ("", ["webgpu"], ["webgpu"]),
        ("rocm,metal", ["cuda"], ["cuda"]),
        ("rocm,metal", ["rocm", "metal", "webgpu", "gpu"], []),
        ("cuda", ["cuda,webgpu"], []),
    ],
    ids=["none", "empty", "others", "several", "one"],
)
def test_what_is_required_decides_the_exit_code(shell: Shell, fake: str, words: list[str], lacking: list[str]) -> None:
    asked = [part for word in words for part in ("--require", word)]
    done = shell.stoker("doctor", "--json", *asked, STOKER_GPU_FAKE=fake)
    (told,) = done.objects()
    assert done.code == (1 if lacking else 0)
    assert told["missing"] == lacking
    assert [line.split()[1] for line in done.err.splitlines() if line.startswith("stoker: ")] == lacking
    assert done.err.count("hint: ") == len(lacking)


def test_a_missing_device_is_a_line_with_a_hint_on_the_screen(shell: Shell) -> None:
    done = shell.stoker("doctor", "--require", "metal", STOKER_GPU_FAKE="cuda")
    assert done.code == 1
    lines = done.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("✗ require metal"))
    assert lines[at + 1].strip().startswith("hint: ")
    assert LABEL in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--require", "cudo"], "did you mean 'cuda'?"),
        (["--require", "gl"], "can't be required"),
        (["--require"], "needs a value"),
        (["--smok"], "did you mean '--smoke'?"),
        (["now"], "unexpected argument"),
    ],
    ids=["misspelt", "part of a word", "no value", "option", "word"],
)
def test_a_wrong_command_line_is_told_with_what_was_meant(shell: Shell, words: list[str], said: str) -> None:
    done = shell.stoker("doctor", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize("command", ["doctor", "gpu-preflight"])
def test_a_misspelt_or_forbidden_fake_is_an_error_everywhere(shell: Shell, command: str) -> None:
    misspelt = shell.stoker(command, STOKER_GPU_FAKE="cudo,gl")
    assert misspelt.code == 21
    assert "did you mean 'cuda'?" in misspelt.err
    assert "gl" in misspelt.err
    forbidden = shell.stoker(command, STOKER_GPU_FAKE="cuda", STOKER_STRICT="1")
    assert forbidden.code == 21
    assert "STOKER_GPU_FAKE" in forbidden.err
    assert "Traceback" not in misspelt.err + forbidden.err


def test_a_terminal_that_knows_few_signs_gets_them(shell: Shell) -> None:
    done = shell.stoker("doctor", STOKER_GPU_FAKE="none", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.code == 0
    assert done.out.isascii()
    assert "\n+ cpu" in done.out


def test_on_a_terminal_lines_are_wrapped_to_its_width(shell: Shell) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    env = {**shell.env, "TERM": "xterm", "NO_COLOR": "1", "STOKER_GPU_FAKE": "cuda"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker", "doctor"], cwd=shell.folder, env=env, stdout=follower, stderr=follower
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(leader)
    assert process.wait() == 0
    # Behind the last picture of the progress.
    lines = shown.decode().replace("\r", "").rpartition("\x1b[2K")[2].splitlines()[1:]
    assert max(map(len, lines)) <= 60


def test_a_machine_where_everything_is_broken_gets_a_line_for_each_and_no_trace(shell: Shell) -> None:
    broken = {"STOKER_HOME": "/proc/nowhere", "STOKER_CONTAIN": "boxes", "STOKER_COOKBOOKS": "nonsense"}
    done = shell.stoker("doctor", STOKER_GPU_FAKE="none", PATH="", HOME="", **broken)
    assert done.code == 0
    assert done.err == ""
    assert "✗ disk" in done.out
    assert "✗ containment" in done.out
    assert "! recipes" in done.out
    assert "problems and" in done.out.splitlines()[-1]


def test_smoke_without_torch_or_on_fakes_is_skipped_with_a_line(shell: Shell) -> None:
    done = shell.stoker("doctor", "--smoke", STOKER_GPU_FAKE="cuda")
    assert done.code == 0
    assert f"skipped: the devices are {LABEL}" in done.out


def test_a_device_that_computes_wrongly_fails_the_smoke_test(shell: Shell, tmp_path: Path) -> None:
    prefix = environment_with(TORCH, tmp_path)
    done = shell.stoker("doctor", "--smoke", "--json", VIRTUAL_ENV=str(prefix))
    assert done.code == 1
    (told,) = done.objects()
    assert [(one["device"], one["cosine"] is None) for one in told["smoke"]] == [
        ("cuda:0", False),
        ("cuda:1", False),
        ("cuda:2", True),
    ]
    verdicts = [check["verdict"] for check in told["checks"] if check["name"].startswith("smoke")]
    assert verdicts == ["ok", "bad", "bad"]
    interpreter = told["capability"]["interpreters"][0]
    assert (interpreter["torch"], interpreter["torch_cuda"]) == ("9.9", "12.0")


@pytest.mark.parametrize(
    ("fake", "true"),
    [
        ("none", []),
        ("", []),
        ("cuda", ["cuda", "wgpu", "any_available"]),
        ("rocm,metal", ["metal", "rocm", "wgpu", "any_available"]),
        ("webgpu", ["wgpu", "any_available"]),
    ],
    ids=["none", "empty", "cuda", "two", "webgpu"],
)
def test_gpu_preflight_gives_its_fields_and_fails_only_if_one_is_required(
    shell: Shell, fake: str, true: list[str]
) -> None:
    done = shell.stoker("gpu-preflight", "--require", "--format", "json", STOKER_GPU_FAKE=fake)
    (told,) = done.objects()
    assert done.code == (0 if true else 1)
    assert ("hint: " in done.err) is not bool(true)
    assert list(told) == [*FIELDS, "is_fake"]
    assert [name for name in FIELDS if told[name] is True] == true
    text = shell.stoker("gpu-preflight", STOKER_GPU_FAKE=fake)
    assert text.code == 0
    lines = text.out.splitlines()
    assert [line.partition(":")[0] for line in lines[: len(FIELDS)]] == FIELDS
    assert [line.partition(":")[0] for line in lines[: len(FIELDS)] if line.endswith(": yes")] == true
    assert lines[-1] == LABEL


def test_gpu_preflight_says_json_two_ways_and_means_the_same(shell: Shell) -> None:
    told = shell.stoker("gpu-preflight", "--format", "json", STOKER_GPU_FAKE="cuda")
    assert shell.stoker("gpu-preflight", "--json", STOKER_GPU_FAKE="cuda").out == told.out


@pytest.mark.parametrize("words", [["--format", "xml"], ["--json", "--format", "text"]], ids=["unknown", "both"])
def test_gpu_preflight_refuses_formats_that_are_none(shell: Shell, words: list[str]) -> None:
    done = shell.stoker("gpu-preflight", *words, STOKER_GPU_FAKE="none")
    assert done.code == 2
    assert "hint: " in done.err


def test_preflight_tells_what_is_installed_and_what_is_there(shell: Shell) -> None:
    (told,) = shell.stoker("preflight", "--json", STOKER_GPU_FAKE="cuda").objects()
    assert list(told) == ["compiled", "runtime", "label"]
    assert list(told["compiled"]) == ["nvidia_ml_py", "tools", "torch"]
    assert told["compiled"]["nvidia_ml_py"]
    assert told["runtime"]["cuda"] is True
    assert told["label"] == LABEL
    text = shell.stoker("preflight", STOKER_GPU_FAKE="none")
    assert text.code == 0
    assert "nvidia-ml-py" in text.out
    assert "any_available: no" in text.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_it_at_once_and_leaves_no_child(
    shell: Shell, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    shell.env["VIRTUAL_ENV"] = str(environment_with("import time\ntime.sleep(600)\n", tmp_path))
    process = shell.start("doctor", "--deep")
    wait_until(lambda: descendants(process.pid))
    children = descendants(process.pid)
    process.send_signal(number)
    done = finish(process)
    assert done.code == code
    assert "Traceback" not in done.err
    wait_until(lambda: not alive(children))


def test_a_gang_without_torch_is_a_finding_that_names_the_extra(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    done = shell.stoker("doctor", "--gang", "2", "--json", STOKER_GPU_FAKE="none", PYTHONPATH=str(tmp_path))
    (told,) = done.objects()
    assert done.code == told["gang"]["error"]["exit_code"] == 29
    (finding,) = [check for check in told["checks"] if check["name"].startswith("gang")]
    assert (finding["verdict"], finding["hint"]) == ("bad", f"{sys.executable} -m pip install 'stoker[torch]'")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("wrong", ["0", "two", "-1"])
def test_a_gang_of_no_number_of_ranks_is_a_wrong_command(shell: Shell, wrong: str) -> None:
    done = shell.stoker("doctor", f"--gang={wrong}")
    assert (done.code, "--gang" in done.err) == (2, True)
