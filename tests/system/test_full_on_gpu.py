"""All weights on a real card: equal to a plain loop, in 16 bits, with 8-bit moments, blocks computed again, estimated.

Needs an NVIDIA card, torch and transformers in this interpreter, and bitsandbytes for moments in 8 bits. It is one
rank: several cards were never tried.
"""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not all(map(find_spec, ("torch", "transformers"))):
    pytest.skip("torch and transformers are not both here", allow_module_level=True)

from stoker.authoring import InputPath
from stoker.cookbooks.language.arguments import FullArgs
from stoker.cookbooks.language.bases import read_base
from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.examples import MemberRows
from stoker.cookbooks.language.memory_needs import FullTrainingSpec, Load, on_gpu_bytes
from stoker.cookbooks.language.schemas import read_training
from stoker.devices.estimate.terms import DEFAULT_CONTEXT_BYTES
from stoker.engine.stage import perform
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled, context, examples

with imported_later():
    import torch
    import transformers

    from stoker.cookbooks.language.full_module import TrainedModule, TrainingRanks

# Other versions of the libraries than elsewhere have other warnings.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ROWS, LENGTH = 8, 512
LARGER = TinyShape(hidden=1024, layers=8, heads=16, kv_heads=8, inner=2816)
"""Some 90 million weights: what they take is more than an allocator's blocks."""


@pytest.fixture(scope="module", autouse=True)
def _a_card() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA device here that this torch can use")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("small"), TinyShape())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with random weights, made by transformers: faster than a hash of every weight."""
    folder = write_base(tmp_path_factory.mktemp("large"), TinyShape(layers=1))
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in {
        "hidden_size": LARGER.hidden,
        "intermediate_size": LARGER.inner,
        "num_hidden_layers": LARGER.layers,
        "num_attention_heads": LARGER.heads,
        "num_key_value_heads": LARGER.kv_heads,
        "head_dim": LARGER.head_dim,
    }.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def batches(count: int, rows: int = ROWS, length: int = LENGTH) -> list[MemberRows]:
    """Rows that can be learned: each token is followed by the next higher one."""
    draws = np.random.default_rng(0)
    made = []
    for _ in range(count):
        tokens = (draws.integers(0, 256, (rows, 1)) + np.arange(length)) % 256
        labels = (tokens + 1) % 256
        used = rows * length
        made.append(MemberRows(tokens=tokens, labels=labels, segments=None, supervised=used, tokens_used=used))
    return made


def on_card(base: Path, **given: Any) -> TrainedModule:
    args = FullArgs(base=InputPath(str(base)), base_files=(), **{"lr": 1e-3, "max_seq_len": LENGTH, **given})
    return TrainedModule(base, args, TrainingRanks(rank=0, count=1, device="cuda"))


def trained(module: TrainedModule, rows: list[MemberRows], lr: float = 1e-3) -> list[float]:
    losses = []
    for step, one in enumerate(rows):
        losses.append(module.learn([one], seed=str(step))[0])
        module.step(lr)
    return losses


def peak_of(base: Path, **given: Any) -> tuple[int, list[float]]:
    """Return what torch's allocator took at most for three updates, and their losses."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    losses = trained(on_card(base, **given), batches(3))
    return torch.cuda.max_memory_reserved() - before, losses


def test_in_32_bits_updates_lose_what_a_plain_loop_loses(small: Path) -> None:
    rows = batches(20, rows=4, length=32)
    model = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).cuda().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    expected = []
    for one in rows:
        tokens, labels = (torch.from_numpy(part).cuda() for part in (one.tokens, one.labels))
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        expected.append(float(loss.detach()))
    assert trained(on_card(small), rows) == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] - 1


def test_16_bits_with_masters_learn_as_32_do_and_lose_no_small_update(small: Path) -> None:
    rows = batches(20, rows=4, length=32)
    narrow = on_card(small, dtype="bfloat16")
    assert trained(narrow, rows) == pytest.approx(trained(on_card(small), rows), rel=3e-2)
    name = "model.norm.weight"
    before = narrow.weights()[name].clone()
    narrow.learn(rows[:1], seed="")
    narrow.step(1e-6)
    assert not torch.equal(narrow.weights()[name], before)
    assert narrow.model.get_parameter(name).dtype == torch.bfloat16


def test_moments_in_8_bits_learn_nearly_alike_and_resume(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    rows = batches(20, rows=4, length=32)
    module = on_card(small, optimizer="adamw8bit", dtype="bfloat16")
    losses = trained(module, rows[:10])
    torch.save([module.weights(), module.optimiser_state()], tmp_path / "state.pt")
    losses += trained(module, rows[10:])
    assert losses == pytest.approx(trained(on_card(small, dtype="bfloat16"), rows), rel=0.1)
    again = on_card(small, optimizer="adamw8bit", dtype="bfloat16")
    again.resume(*torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True))
    assert trained(again, rows[10:]) == pytest.approx(losses[10:], rel=1e-3)


def test_every_way_to_save_memory_saves_it_and_none_takes_more_than_estimated(large: Path) -> None:
    base, count = read_base(large), read_base(large).shape.parameters
    peaks: dict[str, int] = {}
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "again": {"gradient_checkpointing": True},
        "narrow": {"dtype": "bfloat16"},
        "narrow again": {"dtype": "bfloat16", "gradient_checkpointing": True},
        "adafactor": {"optimizer": "adafactor"},
        "narrow adafactor": {"optimizer": "adafactor", "dtype": "bfloat16"},
    }
    if find_spec("bitsandbytes") is not None:
        ways["8 bits"] = {"optimizer": "adamw8bit"}
    for name, given in ways.items():
        peaks[name], losses = peak_of(large, **given)
        load = Load(rank=1, targets=(), rows=ROWS, tokens=LENGTH, dtype=given.get("dtype", "float32"))
        spec = FullTrainingSpec(
            base=base,
            load=load,
            accumulate=1,
            is_packed=False,
            optimizer=given.get("optimizer", "adamw"),
            recomputes=given.get("gradient_checkpointing", False),
        )
        estimated = on_gpu_bytes(spec) - DEFAULT_CONTEXT_BYTES
        print(f"{name}: {peaks[name] / 2**20:,.0f} MiB, estimated {estimated / 2**20:,.0f}; {losses}")
        assert peaks[name] <= 1.05 * estimated
        assert estimated <= 2 * peaks[name]
    assert peaks["again"] < 0.7 * peaks["plain"]
    assert peaks["narrow again"] < peaks["narrow"] < peaks["plain"]
    assert peaks["adafactor"] < peaks["plain"] - 6 * count
    if "8 bits" in peaks:
        assert peaks["8 bits"] < peaks["plain"] - 4 * count


def test_a_whole_stage_trains_packed_rows_on_the_card(tmp_path: Path) -> None:
    node = compiled("full", gpus=1, packing=True, epochs=4, batch=2, lr=3e-3, max_seq_len=64).node("train_full")
    said: list[dict[str, Any]] = []
    out = tmp_path / "out"
    out.mkdir()
    job = context("train_full", out, said=said, diverges_on=("loss",), devices=("GPU-0",))
    made = perform(node.stage, job, {"examples": examples(tmp_path / "examples")}, node.stage.args.make(node.args))
    training = read_training(made.path)
    assert (training["device"], training["dtype"]) == ("cuda", "bfloat16")
    assert training["settings"]["packing"] is True
    points = [one["loss"] for one in training["curve"]["points"] if one["loss"] is not None]
    assert points[-1] < points[0]
    assert [one for one in said if "step" in one][-1]["metrics"]["peak_bytes"] > 0
