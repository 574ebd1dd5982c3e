"""What uv is given of a person's settings, and what its failures mean: its own words, as they were said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.host.install import Trouble, diagnose, find_uv, uv_environment, without_secrets

NO_WHEEL = """\
Creating virtual environment at: /somewhere
error: Distribution `torch==2.1 @ path+wheels/torch-2.1-cp39-cp39-win_amd64.whl` can't be installed because the binary \
distribution is incompatible with the current platform

hint: You're using CPython 3.11 (`cp311`), but `torch` (v2.1) only has wheels with the following ABI tag: `cp39`"""
NO_ABI = """\
error: No solution found when resolving dependencies
  cause: Because onlywin==1.0 has no wheels with a matching Python ABI tag (e.g., `cp311`) and only onlywin==1.0 is \
available, we can conclude that all versions of onlywin cannot be used.
         And because you require onlywin, we can conclude that your requirements are unsatisfiable."""
UNKNOWN = """\
error: No solution found when resolving dependencies
  cause: Because alpha was not found in the package registry and you require alpha, we can conclude that your \
requirements are unsatisfiable."""
OFFLINE = """\
error: No solution found when resolving dependencies
  cause: Because alpha was not found in the cache and you require alpha, we can conclude that your requirements are \
unsatisfiable.

hint: Packages were unavailable because the network was disabled."""
REFUSED = """\
error: Request failed after 3 retries in 7.8s
  cause: Failed to fetch: https://me:hush@127.0.0.1:9/simple/alpha/
  cause: error sending request for url (https://me:hush@127.0.0.1:9/simple/alpha/)
  cause: Connection refused (os error 111)"""
DISK = """\
Prepared 2 packages in 9ms
error: Failed to install: alpha-1.0-py3-none-any.whl (alpha==1.0)
  cause: failed to copy file from /a to /b: No space left on device (os error 28)"""
BUILD = """\
   Building broken==1.0
error: Failed to build `broken==1.0`
  cause: The build backend returned an error

         [stderr]
         no compiler here

hint: Build failures usually indicate a problem with the package or the build environment"""


@pytest.mark.parametrize(
    ("text", "trouble", "why"),
    [
        (NO_WHEEL, Trouble.IMPOSSIBLE, "no wheel of torch for aarch64 cp311"),
        (NO_ABI, Trouble.IMPOSSIBLE, "no wheel of onlywin for aarch64 cp311"),
        (UNKNOWN, Trouble.IMPOSSIBLE, "No solution found when resolving dependencies: Because alpha was not found"),
        (OFFLINE, Trouble.PASSING, "No solution found when resolving dependencies: Because alpha was not found in the"),
        (REFUSED, Trouble.PASSING, "Request failed after 3 retries in 7.8s: Failed to fetch: https://***@127.0.0.1:9/"),
        (DISK, Trouble.PASSING, "Failed to install: alpha-1.0-py3-none-any.whl (alpha==1.0): failed to copy file"),
        (
            BUILD,
            Trouble.IMPOSSIBLE,
            "Failed to build `broken==1.0`: The build backend returned an error [stderr] no com",
        ),
        ("", Trouble.PASSING, "uv ended with 2"),
        ("thread 'main' panicked", Trouble.PASSING, "thread 'main' panicked"),
    ],
    ids=["no-wheel", "no-abi", "unknown", "offline", "refused", "disk", "build", "silent", "panic"],
)
def test_a_failure_is_impossible_here_or_may_pass(text: str, trouble: Trouble, why: str) -> None:
    found = diagnose(text.splitlines(), 2, where="aarch64 cp311")
    assert found.trouble is trouble
    assert found.why.startswith(why)
    assert "hush" not in found.why


def test_pip_s_settings_are_handed_on_under_uv_s_names_and_its_own_win() -> None:
    made = uv_environment(
        {
            "PATH": "/bin",
            "PIP_INDEX_URL": "https://me:hush@host/simple",
            "PIP_FIND_LINKS": "/a /b",
            "PIP_EXTRA_INDEX_URL": "https://one/simple https://two/simple",
            "UV_INDEX": "https://mine/simple",
            "VIRTUAL_ENV": "/old",
            "UV_PYTHON": "3.8",
            "PYTHONPATH": "/mine",
        },
        UV_PROJECT_ENVIRONMENT="/new",
    )
    assert made["UV_DEFAULT_INDEX"] == "https://me:hush@host/simple"
    assert made["UV_FIND_LINKS"] == "/a,/b"
    assert made["UV_INDEX"] == "https://mine/simple"
    assert made["UV_PROJECT_ENVIRONMENT"] == "/new"
    assert made["UV_PYTHON_DOWNLOADS"] == "never"
    assert {"VIRTUAL_ENV", "UV_PYTHON", "PYTHONPATH"}.isdisjoint(made)
    assert uv_environment({"UV_PYTHON_DOWNLOADS": "automatic"})["UV_PYTHON_DOWNLOADS"] == "automatic"


def test_passwords_in_addresses_are_never_shown() -> None:
    line = "\x1b[2mFetching\x1b[0m https://user:to%40ken@host/simple/x and ssh://git@host/y"
    assert without_secrets(line) == "Fetching https://***@host/simple/x and ssh://***@host/y"


def test_uv_is_found_beside_our_interpreter_and_else_on_the_path(tmp_path: Path) -> None:
    for place in ("own/bin", "other"):
        (tmp_path / place).mkdir(parents=True)
        program = tmp_path / place / "uv"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    around = {"PATH": str(tmp_path / "other")}
    assert find_uv(str(tmp_path / "own"), around) == str(tmp_path / "own/bin/uv")
    assert find_uv(str(tmp_path / "none"), around) == str(tmp_path / "other/uv")
    assert find_uv(str(tmp_path / "none"), {"PATH": os.devnull}) == ""
