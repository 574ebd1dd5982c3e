"""Training of transformers' own modules: equal to a plain loop, in fewer bits, with less memory, packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath
from stoker.cookbooks.language.arguments import FullArgs
from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.examples import Cursor, MemberRows
from stoker.core.errors import BadInput, StokerError
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import examples

with imported_later("torch", "transformers"):
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    from stoker.cookbooks.language.compute.transformers_base import load_transformers
    from stoker.cookbooks.language.full_module import TrainedModule, TrainingRanks
    from tests.unit.cookbooks.language.engine.general_bases import general_base

RATES = [3e-3 * (20 - step) / 20 for step in range(20)]


def base_of(folder: Path, family: str) -> Path:
    if family in ("llama", "qwen2"):
        return write_base(folder, TinyShape(family=family, is_tied=family == "qwen2"))  # type: ignore[arg-type]
    return general_base(folder, family)


def alone(base: Path, **given: Any) -> TrainedModule:
    """Return a base in training by one rank."""
    args = FullArgs(base=InputPath(str(base)), base_files=(), **{"lr": 3e-3, "batch": 5, "max_seq_len": 64, **given})
    return TrainedModule(base, args, TrainingRanks(rank=0, count=1, device="cpu"))


def batches_of(folder: Path, count: int = 20, *, is_packed: bool = False) -> list[MemberRows]:
    cursor = Cursor(examples(folder, count=36).load(), row_tokens=64, batch=5, seed=0, is_packed=is_packed)
    return [cursor.next() for _ in range(count)]


def trained(module: TrainedModule, batches: list[MemberRows]) -> list[float]:
    losses = []
    for step, (rows, rate) in enumerate(zip(batches, RATES, strict=False)):
        losses.append(module.learn([rows], seed=str(step))[0])
        module.step(rate)
    return losses


def plainly_trained(base: Path, batches: list[MemberRows]) -> list[float]:
    """Train as a script over transformers does, with its own loss and an attention mask."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).train()
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    losses = []
    for rows, rate in zip(batches, RATES, strict=False):
        tokens, labels = torch.from_numpy(rows.tokens), torch.full(rows.labels.shape, -100)
        # There labels are moved by the model.
        labels[:, 1:] = torch.from_numpy(rows.labels)[:, :-1]
        loss = model(input_ids=tokens, attention_mask=(tokens != 259).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma", "gemma2", "phi"])
def test_twenty_updates_lose_what_a_plain_loop_loses(tmp_path: Path, family: str) -> None:
    base, batches = base_of(tmp_path / "base", family), batches_of(tmp_path / "examples")
    expected = plainly_trained(base, batches)
    assert trained(alone(base), batches) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0] - 1


def test_blocks_that_are_computed_again_change_no_bit(tmp_path: Path) -> None:
    base, batches = base_of(tmp_path / "base", "gpt2"), batches_of(tmp_path / "examples", 4)
    losses = [trained(alone(base, gradient_checkpointing=again), batches) for again in (False, True)]
    assert losses[0] == losses[1]


def test_sixteen_bits_compute_and_thirty_two_are_kept(tmp_path: Path) -> None:
    base, batches = base_of(tmp_path / "base", "llama"), batches_of(tmp_path / "examples")
    wide, narrow = (alone(base, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert trained(narrow, batches) == pytest.approx(trained(wide, batches), rel=2e-2)
    weights = narrow.weights()
    assert {one.dtype for one in weights.values()} == {torch.float32}
    assert {one.dtype for one in narrow.model.parameters()} == {torch.bfloat16}
    # An update below the precision of 16 bits is not lost.
    name = "model.norm.weight"
    before = weights[name].clone()
    narrow.learn(batches[:1], seed="")
    narrow.step(1e-6)
    assert not torch.equal(narrow.weights()[name], before)
    assert torch.equal(narrow.model.get_parameter(name).detach(), narrow.weights()[name].bfloat16())


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "adafactor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_that_resumes_goes_on_to_the_bit(tmp_path: Path, optimizer: str, dtype: str) -> None:
    if optimizer == "adamw8bit":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    base, batches = base_of(tmp_path / "base", "llama"), batches_of(tmp_path / "examples", 6)
    whole = alone(base, optimizer=optimizer, dtype=dtype)
    losses = trained(whole, batches[:3])
    torch.save([whole.weights(), whole.optimiser_state()], tmp_path / "state.pt")
    losses += trained(whole, batches[3:])
    again = alone(base, optimizer=optimizer, dtype=dtype)
    again.resume(*torch.load(tmp_path / "state.pt", weights_only=True))
    assert trained(again, batches[3:]) == losses[3:]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "phi"])
def test_texts_of_one_row_do_not_see_each_other(tmp_path: Path, family: str) -> None:
    base = base_of(tmp_path / "base", family)
    module = alone(base, packing=True)
    assert module.takes_packed_rows
    (rows,) = batches_of(tmp_path / "packed", 1, is_packed=True)
    assert rows.segments is not None
    apart = 0.0
    model = load_transformers(base)
    for tokens, labels, segments in zip(rows.tokens, rows.labels, rows.segments, strict=True):
        for segment in range(segments[-1] + 1):
            mine = segments == segment
            with torch.no_grad():
                logits = model(torch.from_numpy(tokens[mine])[None]).logits[0]
            apart += float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[mine]), reduction="sum"))
    assert module.judge([rows]) == pytest.approx(apart / rows.supervised, rel=1e-5)


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", "gpt2")
    file = base / "model.safetensors"
    weights = load_file(file)
    save_file({name: one for name, one in weights.items() if not name.endswith("h.1.ln_2.bias")}, file)
    with pytest.raises(BadInput, match=r"has no transformer\.h\.1\.ln_2\.bias"):
        load_transformers(base)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(StokerError, match="can't"):
        load_transformers(base)
