"""Fixtures on a disk that fills up: the right error, and nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import NoSpace
from stoker.crossval import fixture_folder
from stoker.crossval.fixture_folder import write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from tests.unit.host.real_mounts import small_disk


@pytest.mark.parametrize("formats", [("safetensors",), ("f32",), ("q8_0", "f32", "safetensors")])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formats: tuple[str, ...]) -> None:
    monkeypatch.setattr(fixture_folder, "_estimated_bytes", lambda *_: 0)
    with small_disk(tmp_path / "disk", "size=400k") as disk:
        (disk / "ballast").write_bytes(bytes(120 * 1024))
        with pytest.raises(NoSpace):
            write_fixture(str(disk / "model"), FixtureSpec(size="tiny"), formats, now_s=0.0)
        assert os.listdir(disk) == ["ballast"]
        (disk / "ballast").unlink()
        assert write_fixture(str(disk / "model"), FixtureSpec(size="tiny"), ("f16",), now_s=0.0).changed


def test_a_full_disk_leaves_the_fixture_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixture_folder, "_estimated_bytes", lambda *_: 0)
    with small_disk(tmp_path / "disk", "size=400k") as disk:
        folder = disk / "model"
        write_fixture(str(folder), FixtureSpec(size="tiny"), ("f16",), now_s=0.0)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(NoSpace):
            write_fixture(str(folder), FixtureSpec(size="tiny", arch="gpt2"), ("f32",), now_s=0.0)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
