from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stoker.cookbooks.language.bundled import bundled_base  # noqa: E402
from stoker.cookbooks.language.engine.adapters import Adapter, AdapterSpec, fresh_adapter  # noqa: E402
from stoker.cookbooks.language.engine.bases import Base, load_base  # noqa: E402
from stoker.cookbooks.language.engine.slots import Slots  # noqa: E402
from stoker.cookbooks.language.peft_layout import read_adapter, write_adapter  # noqa: E402
from tests.unit.cookbooks.language.walked_language import compiled, run_node  # noqa: E402

TOKENS = torch.tensor([[5, 80, 13, 200, 7, 7, 91]])


def trained(base: Base, **said: Any) -> Adapter:
    """An adapter whose two halves are both noise."""
    spec = AdapterSpec(**{"rank": 4, "alpha": 8.0, "targets": ("q_proj", "o_proj", "down_proj"), **said})
    adapter = fresh_adapter(base.shape, spec)
    draws = torch.Generator().manual_seed(9)
    adapter.weights = {
        name: (a, torch.randn(b.shape, generator=draws) / 10) for name, (a, b) in adapter.weights.items()
    }
    return adapter


def logits(base: Base, adapter: Adapter | None = None) -> Any:
    slots = Slots(base, count=1, rank=4, targets=adapter.spec.targets if adapter else ("q_proj",))
    if adapter is not None:
        slots.seat(0, adapter)
    return slots.logits(0, TOKENS)


@pytest.fixture
def base() -> Base:
    return load_base(bundled_base("tiny"))


def written(adapter: Adapter, folder: Path) -> Path:
    folder.mkdir()
    write_adapter(folder, adapter.spec, adapter.weights, base_name="tiny")
    return folder


@pytest.mark.parametrize("rslora", [False, True])
def test_a_merged_model_answers_as_base_and_adapter_do(tmp_path, base, rslora):
    adapter = trained(base, rslora=rslora)
    folder = written(adapter, tmp_path / "adapter")
    model = run_node(compiled("merge", adapter=str(folder)), "merge_weights", tmp_path)
    merged = logits(load_base(model.path))
    assert torch.allclose(merged, logits(base, adapter), atol=1e-5)
    assert not torch.allclose(merged, logits(base), atol=1e-2)


def test_what_is_written_is_read_back_and_is_the_same_bytes_every_time(tmp_path, base):
    adapter = trained(base, dropout=0.1)
    first, second = (written(adapter, tmp_path / name) for name in ("first", "second"))
    again = read_adapter(first)
    assert (again.spec.rank, again.spec.alpha, again.spec.dropout) == (4, 8.0, 0.1)
    assert set(again.spec.targets) == set(adapter.spec.targets)
    assert all(
        torch.equal(x, y)
        for name in adapter.weights
        for x, y in zip(again.weights[name], adapter.weights[name], strict=True)
    )
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_model_is_kept_in_the_width_that_is_asked_for(tmp_path, base):
    from safetensors.torch import load_file

    folder = written(trained(base), tmp_path / "adapter")
    plan = compiled("merge", adapter=str(folder), dtype="bfloat16")
    model = run_node(plan, "merge_weights", tmp_path)
    assert {one.dtype for one in load_file(model.path / "model.safetensors").values()} == {torch.bfloat16}
