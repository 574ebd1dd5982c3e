from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import TinyShape, bundled_base, write_base
from stoker.cookbooks.language.checks import find_base, is_another_base
from stoker.cookbooks.language.merge import warn_of_another_base
from stoker.cookbooks.language.peft import read_adapter, write_adapter
from stoker.core.errors import BadInput, Damaged, InvalidArgs
from stoker.core.frozen import changed
from stoker.store.weight_files.safetensors import INDEX
from tests.later import imported_later
from tests.unit.cookbooks.language.walked_language import compiled, run_node

with imported_later("torch"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase, load_base
    from stoker.cookbooks.language.compute.slots import Slots
    from tests.unit.cookbooks.language.engine.trained_together import noised


TOKENS = [[5, 80, 13, 200, 7, 7, 91]]


def trained(base: FrozenBase, **said: Any) -> AdapterState:
    """An adapter whose two halves are both noise."""
    spec = AdapterSpec(**{"rank": 4, "alpha": 8.0, "targets": ("q_proj", "o_proj", "down_proj"), **said})
    adapter = noised(fresh_adapter(base.shape, spec), 9, 0.1)
    for one in base.outer_modules():
        if one.name in spec.whole:
            adapter.weights[one.name] = tuple(part.detach().flip(0) for part in one.parts)
    return adapter


def logits(base: BaseWeights, adapter: AdapterState | None = None) -> Any:
    spec = adapter.spec if adapter else AdapterSpec(rank=1, alpha=1.0, targets=("q_proj",))
    slots = Slots(base, count=1, rank=4, targets=spec.targets, dora=spec.dora, whole=spec.whole)
    if adapter is not None:
        slots.load(0, adapter)
    return slots.logits(0, torch.tensor(TOKENS))


@pytest.fixture
def base() -> BaseWeights:
    return load_base(bundled_base("tiny"))


def written(adapter: AdapterState, folder: Path) -> Path:
    folder.mkdir()
    write_adapter(folder, adapter.spec, adapter.weights, base_name="tiny")
    return folder


WHOLE = ("model.embed_tokens", "lm_head")


@pytest.mark.parametrize("said", [{}, {"rslora": True}, {"dora": True}, {"whole": WHOLE}])
def test_a_merged_model_answers_as_base_and_adapter_do(tmp_path, base, said):
    adapter = trained(base, **said)
    folder = written(adapter, tmp_path / "adapter")
    model = run_node(compiled("merge", adapter=str(folder)), "merge_weights", tmp_path)
    merged = logits(load_base(model.path))
    assert torch.allclose(merged, logits(base, adapter), atol=1e-5)
    assert not torch.allclose(merged, logits(base), atol=1e-2)


@pytest.mark.parametrize(("dora", "whole"), [(False, ()), (True, WHOLE)])
def test_what_is_written_is_read_back_and_is_the_same_bytes_every_time(tmp_path, base, dora, whole):
    adapter = trained(base, dropout=0.1, dora=dora, whole=whole)
    first, second = (written(adapter, tmp_path / name) for name in ("first", "second"))
    again = read_adapter(first)
    assert (again.spec.rank, again.spec.alpha, again.spec.dropout, again.spec.dora) == (4, 8.0, 0.1, dora)
    assert set(again.spec.targets) == set(adapter.spec.targets)
    assert set(again.spec.whole) == set(whole)
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


CONFIGS: dict[str, object] = {
    "r": 10**18,
    "lora_alpha": 10**400,
    "lora_dropout": [1],
    "peft_type": "\x1b[2J" + "x" * 10_000,
    "rank_pattern": {"x" * 10_000: 1},
}


@pytest.mark.parametrize("key", CONFIGS)
def test_a_config_that_a_stranger_wrote_is_refused_before_anything_runs(tmp_path, base, key):
    folder = written(trained(base), tmp_path / "adapter")
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: CONFIGS[key]}))
    with pytest.raises(InvalidArgs, match=rf"adapter_config\.json: .*{key}") as refused:
        compiled("merge", adapter=str(folder))
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ['{"peft_type":"LORA","r":4,"lora_alpha":1e999}', "[" * 100_000, ""])
def test_json_that_a_stranger_wrote_is_no_trouble(tmp_path, base, text):
    folder = written(trained(base), tmp_path / "adapter")
    (folder / "adapter_config.json").write_text(text)
    with pytest.raises(InvalidArgs, match="adapter_config"):
        compiled("merge", adapter=str(folder))


def test_the_folder_of_a_sweep_is_no_adapter_and_its_best_is_named(tmp_path, base):
    (tmp_path / "tries").mkdir()
    written(trained(base), tmp_path / "tries" / "best")
    with pytest.raises(InvalidArgs) as refused:
        compiled("merge", adapter=f"{tmp_path / 'tries'}/")
    assert [one.hint for one in refused.value.faults] == [f"adapter={tmp_path / 'tries'}/best is one"]


def test_a_config_that_never_ends_is_not_read(tmp_path, base):
    folder = written(trained(base), tmp_path / "adapter")
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to("/dev/zero")
    with pytest.raises(InvalidArgs, match="not a regular file"):
        compiled("merge", adapter=str(folder))


def test_pickled_weights_are_not_opened(tmp_path, base):
    folder = written(trained(base), tmp_path / "adapter")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(InvalidArgs, match=r"adapter_model\.bin may run any code"):
        compiled("merge", adapter=str(folder))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda tensors: {name.replace("s.0.", "s.00."): one for name, one in tensors.items()}, "layers.00"),
        (lambda tensors: {name: one.long() for name, one in tensors.items()}, "holds 'I64'"),
        (
            lambda tensors: {name: one for name, one in tensors.items() if "1.self_attn.q_proj.lora_m" not in name},
            r"layers\.1\.self_attn\.q_proj is not lora_A, lora_B and lora_magnitude_vector",
        ),
        (
            lambda tensors: {name: one[:-1] if "magnitude" in name else one for name, one in tensors.items()},
            r"4×128 and 64×4 and 63; tiny requires 4×128 and 64×4 and 64",
        ),
    ],
)
def test_weights_that_are_no_adapters_are_refused_before_anything_runs(tmp_path, base, changed, words):
    from safetensors.torch import load_file, save_file

    folder = written(trained(base, dora=True), tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    save_file(changed(load_file(file)), file)
    with pytest.raises(InvalidArgs, match=words):
        compiled("merge", adapter=str(folder))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda tensors: {name: one for name, one in tensors.items() if "lm_head" not in name}, "no weight of lm_head"),
        (
            lambda tensors: {name: one[:9] if "embed" in name else one for name, one in tensors.items()},
            r"its copy of model\.embed_tokens is 9×64; tiny requires 264×64",
        ),
        (
            lambda tensors: {name.replace("model.lm_head", "model.my_lm_head"): one for name, one in tensors.items()},
            "it has a copy of my_lm_head, which is neither embedding nor head of tiny",
        ),
    ],
)
def test_copies_that_do_not_fit_are_refused_before_anything_runs(tmp_path, base, changed, words):
    from safetensors.torch import load_file, save_file

    folder = written(trained(base, whole=WHOLE), tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    save_file(changed(load_file(file)), file)
    with pytest.raises(InvalidArgs, match=words):
        compiled("merge", adapter=str(folder))


@pytest.mark.parametrize("whole", [WHOLE[:1], WHOLE[1:], WHOLE])
def test_copies_over_a_base_whose_head_is_its_embedding_are_merged_apart(tmp_path, whole):
    tied = write_base(tmp_path / "tied", TinyShape(is_tied=True))
    adapter = trained(load_base(tied), whole=whole)
    plan = compiled("merge", base=str(tied), adapter=str(written(adapter, tmp_path / "adapter")))
    model = run_node(plan, "merge_weights", tmp_path)
    assert not find_base(str(model.path)).shape.is_tied
    merged = logits(load_base(model.path))
    assert torch.allclose(merged, logits(load_base(tied), adapter), atol=1e-5)
    assert not torch.allclose(merged, logits(load_base(tied)), atol=1e-2)


def test_a_copy_that_is_not_finite_is_no_model(tmp_path, base):
    adapter = trained(base, whole=WHOLE[1:])
    adapter.weights["lm_head"][0][3, 3] = float("nan")
    folder = written(adapter, tmp_path / "adapter")
    with pytest.raises(BadInput, match=r"lm_head\.weight is not finite in float32"):
        run_node(compiled("merge", adapter=str(folder)), "merge_weights", tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_sum_that_is_not_finite_is_no_model(tmp_path, base, value):
    adapter = trained(base)
    adapter.weights["model.layers.1.self_attn.o_proj"][1][0, 0] = value
    adapter.weights["model.layers.1.self_attn.o_proj"][0][0, 0] = 3e38
    folder = written(adapter, tmp_path / "adapter")
    with pytest.raises(BadInput, match=r"model\.layers\.1\.self_attn\.o_proj\.weight is not finite in float32"):
        run_node(compiled("merge", adapter=str(folder)), "merge_weights", tmp_path)


@pytest.mark.parametrize("text", ['{"weight_map": {"a": "../x"}}', "[" * 100_000, "[]"])
def test_an_index_that_was_put_beside_weights_since_they_were_checked_is_checked_again(tmp_path, text):
    folder = write_base(tmp_path, TinyShape())
    (folder / INDEX).write_text(text)
    with pytest.raises(Damaged, match="can't be read"):
        load_base(folder)


def test_integers_in_a_file_of_weights_stay_and_decide_nothing(tmp_path, base):
    from safetensors.torch import load_file, save_file

    strange = tmp_path / "strange"
    shutil.copytree(bundled_base("tiny"), strange)
    places = torch.arange(1000)
    save_file({"a.places": places, **load_file(strange / "model.safetensors")}, strange / "model.safetensors")
    folder = written(trained(base), tmp_path / "adapter")
    plan = compiled("merge", adapter=str(folder), base=str(strange))
    merged = load_file(run_node(plan, "merge_weights", tmp_path).path / "model.safetensors")
    assert torch.equal(merged.pop("a.places"), places)
    assert {one.dtype for one in merged.values()} == {torch.float32}


def test_another_base_than_the_adapter_names_is_told_and_another_way_to_the_same_is_not(tmp_path, base):
    folder = written(trained(base), tmp_path / "adapter")
    other = write_base(tmp_path / "other", TinyShape(seed=1))
    copied = write_base(tmp_path / "copied")

    def told(name: str, **given: str) -> list[str]:
        said: list[dict[str, Any]] = []
        plan = compiled("merge", adapter=str(folder), **given)
        run_node(plan, "merge_weights", tmp_path / name, said=said)
        found = [one["told"] for one in said if "told" in one]
        node = plan.node("merge_weights")
        assert node.stage.foresee is warn_of_another_base
        foreseen = warn_of_another_base(node.stage.args.make(node.args))
        assert [foreseen] * bool(foreseen) == found, "a dry run says the same"
        return found

    assert told("another", base=str(other)) == ["the adapter was trained over tiny, this is other"]
    assert told("same", base="tiny") == told("copy", base=str(copied)) == []


@pytest.mark.parametrize(
    ("told", "name", "is_another"),
    [
        ("org/name", "org/name@main", False),
        ("org/name", "org/other", True),
        ("other/name", "org/name", True),
        ("org/name", "name", False),
        ("/models/name/", "org/name", False),
        ("/models/name", "other", True),
        ("org/name", "a" * 40, False),
        ("", "name", False),
        (None, "name", False),
    ],
)
def test_names_of_bases_are_compared_as_far_as_they_are_known(told, name, is_another):
    found = changed(find_base("tiny"), name=name)
    assert is_another_base(told, found) is is_another


def test_a_base_that_is_none_cant_be_merged(tmp_path, base):
    with pytest.raises(InvalidArgs, match=r"can't be merged: it has no config\.json"):
        compiled("merge", base=str(tmp_path), adapter=str(written(trained(base), tmp_path / "adapter")))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("family", "left_out", "said"),
    [
        ("gpt2", "", {}),
        ("gpt2", "transformer.", {"dora": True, "whole": ("transformer.wte",)}),
        ("gemma", "", {"dora": True, "whole": ("lm_head",)}),
        ("phi", "", {"whole": ("lm_head",)}),
        ("gemma3", "", {}),
    ],
)
def test_over_a_base_of_another_family_too(tmp_path, family, left_out, said):
    from peft import PeftModel
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    from stoker.cookbooks.language.compute.general_base import load_general
    from stoker.cookbooks.language.compute.matrices import settled_targets
    from tests.unit.cookbooks.language.engine.general_bases import general_base

    folder = general_base(tmp_path / "base", family)
    # As the hub's GPT-2, whose files leave out the name of the outermost module.
    file = folder / "model.safetensors"
    save_file({name.removeprefix(left_out): one for name, one in load_file(file).items()}, file, {"format": "pt"})
    general = load_general(folder, device="cpu", dtype="float32")
    words = {"gpt2": ("attn.c_attn", "mlp.c_proj"), "gemma": ("q_proj", "down_proj")}.get(family, ("q_proj",))
    names = settled_targets(words, [one.name for one in general.shape.matrices], general.shape.others)
    adapter = trained(general, targets=names, is_transposed=family == "gpt2", **said)
    made = written(adapter, tmp_path / "adapter")
    model = run_node(compiled("merge", base=str(folder), adapter=str(made)), "merge_weights", tmp_path)
    if not adapter.spec.whole:
        assert find_base(str(model.path)).shape.parameters == find_base(str(folder)).shape.parameters
    plain = AutoModelForCausalLM.from_pretrained(folder)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), made)
    with torch.no_grad():
        merged, both, base = (
            one(torch.tensor(TOKENS)).logits
            for one in (AutoModelForCausalLM.from_pretrained(model.path), theirs, plain)
        )
    assert torch.allclose(merged, both, atol=1e-4)
    assert not torch.allclose(merged, base, atol=1e-2)
