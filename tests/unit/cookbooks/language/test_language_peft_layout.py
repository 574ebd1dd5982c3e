from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InvalidArgs
from stoker.cookbooks.language.bases import read_base
from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.chat import ChatModel, chat_load
from stoker.cookbooks.language.checks import LanguageArgsChecker
from stoker.cookbooks.language.peft import read_adapter, read_config, write_adapter
from stoker.core.errors import BadInput
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


def copied(model: Any) -> Any:
    """Change the copies of modules that a model of PEFT has, each once."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.copy_(parameter.flip(0))
    return model


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
    copied(model).save_pretrained(tmp_path / "adapter")
    adapter = read_adapter(tmp_path / "adapter")
    assert (adapter.spec.rank, adapter.spec.alpha, len(adapter.spec.targets)) == (3, 5.0, 7)
    assert adapter.spec.dora is dora
    assert len(adapter.spec.whole) == len(whole or ())
    slots = Slots(load_base(folder), count=1, rank=3, targets=adapter.spec.targets, dora=dora, whole=adapter.spec.whole)
    slots.load(0, adapter)
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS)).logits[:, -1]
    assert torch.allclose(slots.logits(0, torch.tensor(TOKENS)), theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("whole", "is_tied"),
    [(["embed_tokens"], True), (["lm_head"], True), (["embed_tokens", "lm_head"], True), (["lm_head"], False)],
)
def test_an_embedding_and_a_head_that_peft_trained_as_one_are_read(tmp_path, whole, is_tied):
    from peft import LoraConfig, get_peft_model

    folder = write_base(tmp_path / "base", TinyShape(is_tied=is_tied))
    config = LoraConfig(
        r=3, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False, modules_to_save=whole,
        ensure_weight_tying=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = copied(get_peft_model(by_transformers(folder), config))
    model.save_pretrained(tmp_path / "adapter")
    adapter = read_adapter(tmp_path / "adapter")
    # Over a base with two of them PEFT trains what was named, and says `ensure_weight_tying` all the same.
    assert set(adapter.spec.whole) == set(WHOLE if is_tied else whole)
    checking = LanguageArgsChecker("sample")
    checking.adapter(str(tmp_path / "adapter"), read_base(folder))
    checking.refuse()
    model_of_chat = [ChatModel(name="a", adapter=tmp_path / "adapter")]
    how: dict[str, Any] = {"dtype": "float32", "base_dtype": "auto", "path": "auto"}
    assert chat_load(read_base(folder), model_of_chat, 16, **how).whole == len(adapter.spec.whole)
    slots = Slots(load_base(folder), count=1, rank=3, targets=adapter.spec.targets, whole=adapter.spec.whole)
    slots.load(0, adapter)
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS)).logits[:, -1]
    assert torch.allclose(slots.logits(0, torch.tensor(TOKENS)), theirs, atol=1e-5)


def test_a_tied_head_that_is_not_in_the_file_is_missed(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_base(tmp_path / "base", TinyShape(is_tied=True))
    base = load_base(folder)
    adapter = fresh_adapter(base.shape, AdapterSpec(rank=2, alpha=2.0, targets=("q_proj",), whole=WHOLE))
    adapter.weights |= {one.name: (one.weight.clone(),) for one in base.outer_modules()}
    write_adapter(tmp_path, adapter.spec, adapter.weights, base_name="tiny")
    said = tmp_path / "adapter_config.json"
    said.write_text(
        json.dumps({**json.loads(said.read_text()), "modules_to_save": WHOLE[:1], "ensure_weight_tying": True})
    )
    assert set(read_adapter(tmp_path).spec.whole) == set(WHOLE)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    del tensors["base_model.model.lm_head.weight"]
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    checking = LanguageArgsChecker("sample")
    checking.adapter(str(tmp_path), read_base(folder))
    with pytest.raises(InvalidArgs, match=r"no weight of the module tied to model\.embed_tokens"):
        checking.refuse()


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga", 1, ["eva"]])
def test_an_adapter_whose_beginning_changes_the_base_is_refused(tmp_path, start):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "init_lora_weights": start})
    )
    with pytest.raises(BadInput, match=r"init_lora_weights=.*, which changes the base") as refused:
        read_config(tmp_path)
    assert refused.value.hint == "save it with PEFT's path_initial_model_for_weight_conversion, or merge it with PEFT"


@pytest.mark.parametrize("start", [None, True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_an_adapter_whose_beginning_leaves_the_base_is_read_as_peft_reads_it(tmp_path, start):
    from peft import LoraConfig, PeftModel, get_peft_model

    folder = write_base(tmp_path / "base", TinyShape())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=start)
        model = get_peft_model(by_transformers(folder), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path / "adapter")
    adapter = read_adapter(tmp_path / "adapter")
    slots = Slots(load_base(folder), count=1, rank=2, targets=adapter.spec.targets)
    slots.load(0, adapter)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = PeftModel.from_pretrained(by_transformers(folder), tmp_path / "adapter")(torch.tensor(TOKENS)).logits
    assert torch.allclose(slots.logits(0, torch.tensor(TOKENS)), theirs[:, -1], atol=1e-5)


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora"])
def test_an_adapter_that_peft_converted_is_one_over_the_base_itself(tmp_path, start):
    from peft import LoraConfig, get_peft_model

    folder = write_base(tmp_path / "base", TinyShape())
    model = get_peft_model(
        by_transformers(folder),
        LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=start),
    )
    model.save_pretrained(tmp_path / "first")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        theirs = model(torch.tensor(TOKENS)).logits[:, -1]
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(BadInput, match="which changes the base"):
        read_adapter(tmp_path / "plain")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(tmp_path / "converted", path_initial_model_for_weight_conversion=tmp_path / "first")
    adapter = read_adapter(tmp_path / "converted")
    slots = Slots(load_base(folder), count=1, rank=4, targets=adapter.spec.targets)
    slots.load(0, adapter)
    assert torch.allclose(slots.logits(0, torch.tensor(TOKENS)), theirs, atol=1e-4)
