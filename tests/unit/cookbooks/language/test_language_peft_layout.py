from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.peft import read_adapter, write_adapter
from tests.later import imported_later

with imported_later("torch"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.trained_together import noised


# Not imported before it is used: whoever only collects tests would wait for it.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="there is no PEFT here")
WHOLE = ("model.embed_tokens", "lm_head")
TOKENS = [[5, 80, 13, 200, 7, 7, 91]]


def by_transformers(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    "said",
    [{}, {"rslora": True, "targets": ("v_proj", "up_proj"), "alpha": 3.5}, {"dora": True}, {"whole": WHOLE}],
)
def test_peft_loads_an_adapter_and_answers_the_same(tmp_path, said):
    from peft import PeftModel

    folder = write_base(tmp_path / "base", TinyShape(family="qwen2"))
    base = load_base(folder)
    spec = AdapterSpec(**{"rank": 4, "alpha": 8.0, "targets": ("q_proj", "o_proj", "down_proj"), **said})
    adapter = noised(fresh_adapter(base.shape, spec), 9, 0.1)
    adapter.weights |= {one.name: (one.weight.flip(0),) for one in base.outer_modules() if one.name in spec.whole}
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", spec, adapter.weights, base_name=str(folder))
    slots = Slots(base, count=1, rank=4, targets=spec.targets, dora=spec.dora, whole=spec.whole)
    slots.load(0, adapter)
    tokens = torch.tensor(TOKENS)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(by_transformers(folder), tmp_path / "adapter")(tokens).logits[:, -1]
    assert torch.allclose(slots.logits(0, tokens), theirs, atol=1e-5)


@pytest.mark.parametrize("whole", [None, ["embed_tokens"], ["lm_head", "embed_tokens"]])
@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_that_peft_wrote_is_read(tmp_path, dora, whole):
    from peft import LoraConfig, get_peft_model

    folder = write_base(tmp_path / "base", TinyShape())
    config = LoraConfig(
        r=3, lora_alpha=5, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False, use_dora=dora,
        modules_to_save=whole,
    )  # fmt: skip
    model = get_peft_model(by_transformers(folder), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.copy_(parameter.flip(0))
    model.save_pretrained(tmp_path / "adapter")
    adapter = read_adapter(tmp_path / "adapter")
    assert (adapter.spec.rank, adapter.spec.alpha, len(adapter.spec.targets)) == (3, 5.0, 7)
    assert adapter.spec.dora is dora
    assert len(adapter.spec.whole) == len(whole or ())
    slots = Slots(load_base(folder), count=1, rank=3, targets=adapter.spec.targets, dora=dora, whole=adapter.spec.whole)
    slots.load(0, adapter)
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS)).logits[:, -1]
    assert torch.allclose(slots.logits(0, torch.tensor(TOKENS)), theirs, atol=1e-5)
