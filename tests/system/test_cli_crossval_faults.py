"""Faults of a model through the command: each is found, located, has its exit code, and leaves reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.crossval.fixture_folder import write_fixture
from stoker.crossval.fixture_models import FixtureSpec
from tests.fakes.broken_models import FAULTS, break_model
from tests.system.shell import Shell

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.slow

CASES = {
    "q heads swapped": ("llama", 1, "blk.1.attn_q.weight: ", "layers"),
    "rope base 50 times": ("llama", 1, "rope.freq_base is 2.5e+06 in the candidate, 50000 in the reference", "files"),
    "layers swapped": ("llama", 1, "blk.0.attn_norm.weight: ", "layers"),
    "weight negated": ("llama", 1, "blk.1.attn_q.weight: 1 of 4,096 values differ, the first at [3, 7]", "weights"),
    "wrong token": ("llama", 15, "tokenizers disagree at token 1 of", "tokens"),
    "truncated": ("llama", 13, "is damaged: it has 346,848 bytes; 'output.weight' ends at 350,944", ""),
    "q bias missing": ("qwen2", 1, "candidate: it lacks blk.1.attn_q.bias", "files"),
    "positions + 1 from 16": ("gpt2", 1, "position_embd.weight: ", "embedding"),
}


def exchange_tokens(path: Path) -> None:
    """Exchange two letters in the vocabulary of a GGUF file: each becomes the other's id."""
    data = path.read_bytes()
    one, two = (b"\x01" + bytes(7) + letter for letter in (b"a", b"b"))
    assert data.count(one) == data.count(two) == 1
    path.write_bytes(data.replace(one, b"?" * 9).replace(two, one).replace(b"?" * 9, two))


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_named_by_the_command(shell: Shell, name: str):
    arch, code, said, step = CASES[name]
    folder = shell.folder / "models"
    write_fixture(str(folder), FixtureSpec(size="tiny", arch=arch), ("f32",), now_s=0.0)  # type: ignore[arg-type]
    whole, broken = folder / "model-f32.gguf", shell.folder / "broken.gguf"
    if name == "wrong token":
        broken.write_bytes(whole.read_bytes())
        exchange_tokens(broken)
    else:
        break_model(whole, broken, FAULTS[name])
    words = ("--candidate", "llama.cpp", "--reference", "llama.cpp", "--positions", "32")
    done = shell.stoker("crossval", "--model", broken, "--reference-model", whole, *words)
    assert done.code == code, done.out + done.err
    assert said in done.err
    report = json.loads((shell.folder / "stoker-out" / "crossval" / "report.json").read_text())
    assert report["outcome"] == ("failed" if step else "error")
    assert not step or {one["name"]: one["outcome"] for one in report["checks"]}[step] == "failed"
