from __future__ import annotations

from pathlib import Path

from stoker.plan.program.manifest import frameworks_of


def test_frameworks_are_read_off_an_environment_without_starting_it(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in (
        "torch-2.13.0.dist-info",
        "numpy-2.1.0.dist-info",
        "torchx-0.7.dist-info",
        "torch",
        "requests-2.0.dist-info",
    ):
        (packages / name).mkdir(parents=True)
    assert frameworks_of(str(tmp_path / "bin" / "python")) == {"numpy": "2.1.0", "torch": "2.13.0"}


def test_an_interpreter_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert frameworks_of(str(tmp_path / "nowhere" / "bin" / "python")) == {}
    assert frameworks_of("") == {}
