"""Fixtures are what transformers and llama.cpp understand: both load every file, and give the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from stoker.crossval.fixture_folder import SAFETENSORS, formats_of, write_fixture
from stoker.crossval.fixture_models import FixtureSpec

IDS = [(7 * place * place + 3 * place) % 96 + 3 for place in range(64)]
TEXTS = [
    "The rain in Spain stays mainly in the plain.",
    "it's 12,345.67 dollars; don't pay\n\nbefore   noon",
    "  leading and trailing  ",
    "tabs are lost? no: none here",
    "CamelCase snake_case kebab-case (a+b)*c == {d}",
    "one\ntwo\nthree\n",
    "",
]
SPECS = (
    FixtureSpec(size="tiny", arch="llama"),
    FixtureSpec(size="tiny", arch="qwen2"),
    FixtureSpec(size="tiny", arch="gpt2"),
    FixtureSpec(size="small", arch="llama"),
    FixtureSpec(size="medium", arch="llama"),
)
# Normalised mean squared error of a position, and largest difference in standard deviations of the reference's logits.
LIMITS = {"f32": (1e-9, 1e-4), "f16": (5e-4, 0.2), "bf16": (2e-2, 1.0), "q8_0": (5e-2, 2.0), "q4_k": (5e-2, 2.0)}
# llama.cpp looks GELU up in a table of halves: 6e-8 was measured.
GPT2_LIMITS = {**LIMITS, "f32": LIMITS["f16"]}


def test_transformers_and_llama_cpp_agree_on_every_fixture(tmp_path: Path) -> None:
    models: dict[tuple[FixtureSpec, str], Path] = {}
    for spec in SPECS:
        folder = tmp_path / f"{spec.arch}-{spec.size}"
        kinds = ("f32", "q4_k") if spec.size == "medium" else tuple(set(formats_of(spec)) - {SAFETENSORS})
        write_fixture(str(folder), spec, (SAFETENSORS, *kinds), now_s=0.0)
        models |= {(spec, kind): folder / f"model-{kind}.gguf" for kind in kinds}
    logits, tokens = by_llama([str(path) for path in models.values()], tmp_path)
    found = {}
    for number, (spec, kind) in enumerate(models):
        folder = models[spec, kind].parent
        reference, words = _by_transformers(folder)
        assert tokens[number] == words, (spec, kind)
        found[spec.arch, spec.size, kind] = _distance(logits[number], reference)
    limits = {key: (GPT2_LIMITS if key[0] == "gpt2" else LIMITS)[key[2]] for key in found}
    far = {key: one for key, one in found.items() if one[0] > limits[key][0] or one[1] > limits[key][1]}
    assert not far, found
    assert all(one[2] == 1 for key, one in found.items() if key[2] == "f32" and key[0] != "gpt2"), found


_cache: dict[Path, tuple[np.ndarray, list[list[int]]]] = {}


def _by_transformers(folder: Path) -> tuple[np.ndarray, list[list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if folder not in _cache:
        model, facts = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert not any(facts[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), facts
        with torch.no_grad():
            rows = model.eval()(torch.tensor([IDS])).logits[0].numpy()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        _cache[folder] = rows, [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    return _cache[folder]


def by_llama(
    models: list[str], folder: Path, adapters: list[str] | None = None
) -> tuple[list[np.ndarray], list[list[list[int]]]]:
    request = json.dumps({"models": models, "adapters": adapters, "ids": IDS, "texts": TEXTS, "out": str(folder)})
    program = Path(__file__).parent.parent / "fakes" / "llama_logits.py"
    env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        [sys.executable, program], input=request, capture_output=True, text=True, env=env, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{number}.npy") for number in range(len(models))], json.loads(done.stdout)


def _distance(candidate: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Return the worst squared error and largest difference of a position, and how often the first token agrees."""
    one = candidate.astype(np.float64) - candidate.mean(axis=1, keepdims=True, dtype=np.float64)
    two = reference.astype(np.float64) - reference.mean(axis=1, keepdims=True, dtype=np.float64)
    nmse = ((one - two) ** 2).sum(axis=1) / (two**2).sum(axis=1)
    largest = np.abs(one - two).max(axis=1) / two.std(axis=1)
    agree = (one.argmax(axis=1) == two.argmax(axis=1)).mean()
    return float(nmse.max()), float(largest.max()), float(agree)
