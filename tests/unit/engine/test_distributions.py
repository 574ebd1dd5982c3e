from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.engine.code_identity import version_of


def test_versions_are_read_from_the_names_of_metadata_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Scikit_Learn-1.7.2.dist-info").mkdir()
    (tmp_path / "zope.interface-6.1-py3.11.egg-info").mkdir()
    (tmp_path / "old_tool-0.1.egg-info").mkdir()
    (tmp_path / "not-a-distribution").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    assert version_of("scikit-learn") == "1.7.2"
    assert version_of("scikit.LEARN") == "1.7.2"
    assert version_of("old-tool") == "0.1"
    assert version_of("numpy") == "absent"


def test_the_first_of_a_name_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("a", "1.0"), ("b", "2.0")):
        (tmp_path / folder / f"thing-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert version_of("thing") == "1.0"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "b"), str(tmp_path / "a")])
    assert version_of("thing") == "2.0"


def test_python_is_known_by_its_minor_version() -> None:
    assert version_of("python") == f"3.{sys.version_info.minor}"


def test_the_answer_is_what_the_packaging_tools_say() -> None:
    from importlib.metadata import version

    assert version_of("hypothesis") == version("hypothesis")
