from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from stoker.api.app_parts import read_settings, with_kernels_kept
from stoker.app.machine_parts import shared_process_settings


def test_a_shared_process_keeps_its_kernels_in_the_home_not_in_a_temporary_folder() -> None:
    settings = read_settings({"STOKER_HOME": "/home/me/stoker", "LANG": "C"}, "/somewhere")
    environment = shared_process_settings(
        settings, environment=settings.environment, contain=None, version="1"
    ).environment
    assert environment == {
        "STOKER_HOME": "/home/me/stoker",
        "LANG": "C",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/stoker/kernels/inductor",
        "TRITON_CACHE_DIR": "/home/me/stoker/kernels/triton",
    }


def test_whoever_says_where_kernels_go_is_believed() -> None:
    assert with_kernels_kept({"TORCHINDUCTOR_CACHE_DIR": "/mine"}, "/home/kernels") == {
        "TORCHINDUCTOR_CACHE_DIR": "/mine"
    }
    assert with_kernels_kept({"TRITON_CACHE_DIR": "/mine"}, "/home/kernels") == {
        "TORCHINDUCTOR_CACHE_DIR": "/home/kernels/inductor",
        "TRITON_CACHE_DIR": "/mine",
    }


def test_doors_of_shared_processes_are_not_put_into_another_users_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_settings({"XDG_RUNTIME_DIR": str(tmp_path)}, "/somewhere")
    assert settings.shared_process_folder == str(tmp_path / "stoker-companies")
    # As after `su`, which leaves the environment as it is.
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert os.path.dirname(settings.shared_process_folder) == tempfile.gettempdir()
