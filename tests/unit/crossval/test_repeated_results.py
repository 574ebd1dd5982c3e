"""A benchmark's result is run again only here, and only if nothing of what it measured has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import Usage
from stoker.crossval.bench import program_files
from stoker.crossval.gate_run import digest_of
from stoker.crossval.gate_sides import ModelSide, ProgramSide
from stoker.crossval.repeated_results import can_run_again, run_again
from stoker.crossval.stored_sides import StoredSide


def side(subject: Mapping[str, Any], machine: str = "desk") -> StoredSide:
    return StoredSide(shown="a.json", machine=machine, samples=({"latency": 1.0},), subject=subject)


def again(subject: Mapping[str, Any], machine: str = "desk") -> ProgramSide | ModelSide:
    return run_again(side(subject, machine), "desk", digest_of)


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "bench.py").write_text("import helper\n")
    argv, folder = ["python3", "bench.py"], str(tmp_path)
    return {"kind": "program", "argv": argv, "folder": folder, "files": program_files(argv, folder)}


def test_a_program_is_run_again_until_a_file_that_it_imports_changes(program: dict[str, Any], tmp_path: Path) -> None:
    assert again(program) == ProgramSide(argv=("python3", "bench.py"), folder=str(tmp_path))
    (tmp_path / "helper.py").write_text("x = 2\n")
    with pytest.raises(Usage, match=r"helper\.py has changed since"):
        again(program)
    assert not can_run_again(side(program), "desk", digest_of)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {}}, "no files of its program are recorded"),
        ({"files": {"bench.py": "ab"}}, "has changed since"),
        ({"argv": ["sh", "-c", "evil"]}, "has changed since"),
        ({"argv": "sh"}, "does not name a program"),
        ({"argv": [1]}, "does not name a program"),
        ({"folder": "/nowhere"}, "has changed since"),
        ({"folder": None}, "does not name a program"),
    ],
)
def test_what_a_file_claims_is_not_run_without_the_files_that_it_names(
    program: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Usage, match=message):
        again({**program, **change})


def test_another_machine_and_mere_numbers_are_not_run(program: dict[str, Any]) -> None:
    with pytest.raises(Usage, match="it was measured on lab1"):
        again(program, "lab1")
    with pytest.raises(Usage, match="an unknown machine"):
        again(program, "")
    with pytest.raises(Usage, match="it only has numbers"):
        again({})


def test_a_model_is_run_again_with_its_runtime_until_it_or_its_base_changes(tmp_path: Path) -> None:
    model, base = tmp_path / "m.gguf", tmp_path / "base"
    model.write_bytes(b"weights")
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"more")
    digests = {"sha256": digest_bytes(b"weights")}, {"stokerTree": digest_of(str(base)).removeprefix("tree:")}
    subject = {"kind": "model", "model": str(model), "choice": "torch,precision=bf16", "digest": digests[0]}
    assert again(subject) == ModelSide(path=str(model), runtime="torch,precision=bf16")
    adapter = {**subject, "base": str(base), "base_digest": digests[1]}
    assert isinstance(again(adapter), ModelSide)
    for runtime in ("./evil.py", "torch,python=/tmp/evil", "http://host,env=SECRET"):
        with pytest.raises(Usage, match="its runtime is"):
            again({**subject, "choice": runtime})
    with pytest.raises(Usage, match="no digest of its model"):
        again({**subject, "digest": {}})
    (base / "model.safetensors").write_bytes(b"less")
    with pytest.raises(Usage, match="base is gone or has changed"):
        again(adapter)
    model.unlink()
    with pytest.raises(Usage, match=r"m\.gguf is gone or has changed"):
        again(subject)
