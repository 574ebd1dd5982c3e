"""Bases of families that only transformers computes: planned, estimated, trained, sampled and reported like others."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath, InvalidArgs
from stoker.cookbooks.language.arguments import SampleArgs
from stoker.cookbooks.language.checks import find_base
from stoker.cookbooks.language.compute.general_shape import causal_families, general_shape, named_as
from stoker.cookbooks.language.compute.matrices import meant_by, settled_targets, short_names
from stoker.cookbooks.language.peft import read_adapter
from stoker.cookbooks.language.sample import open_slots
from stoker.core.errors import BadInput
from stoker.devices.estimate.shared_base import MultiAdapterTraining, estimate_adapters, read_adapters
from tests.later import imported_later
from tests.unit.cookbooks.language.test_language_sharing import shared
from tests.unit.cookbooks.language.walked_language import compiled, run_node

with imported_later("torch"):
    from tests.unit.cookbooks.language.engine.general_bases import general_base

NAMES = [
    f"transformer.h.{block}.{name}"
    for block in range(2)
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return general_base(tmp_path_factory.mktemp("general") / "gpt2", "gpt2")


def faults_of(name: str, **given: Any) -> dict[str, str]:
    with pytest.raises(InvalidArgs) as caught:
        compiled(name, **given)
    return {fault.where.rpartition(".")[2]: f"{fault.message} | {fault.hint}" for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (["all-linear"], ("c_attn", "c_proj", "c_fc")),
        (["attention"], ("c_attn", "attn.c_proj")),
        (["mlp"], ("c_fc", "mlp.c_proj")),
        (["c_proj"], ("c_proj",)),
        (["*.attn.*"], ("c_attn", "attn.c_proj")),
        (["h.1.*", "c_fc"], ("c_fc", "h.1.attn.c_attn", "h.1.attn.c_proj", "h.1.mlp.c_proj")),
        (["transformer.h.0.mlp.c_fc"], ("h.0.mlp.c_fc",)),
    ],
)
def test_words_mean_matrices_and_are_settled_to_names_that_mean_the_same_in_peft(words, targets):
    assert set(settled_targets(words, NAMES)) == set(targets)
    meant = {name for word in words for name in meant_by(word, NAMES)}
    assert {name for target in targets for name in meant_by(target, NAMES)} == meant


def test_a_name_that_ends_another_is_made_longer():
    assert short_names({"a.0.x"}, ["a.0.x", "b.0.x"]) == ("a.0.x",)
    assert short_names({"0.x"}, ["0.x", "10.x"]) == ("0.x",)


def test_families_are_those_of_transformers_which_is_not_imported():
    assert {"gpt2", "gemma2", "llama", "mixtral", "mamba"} <= causal_families()
    assert "bert_of_no_kind" not in causal_families()


def test_a_base_of_any_family_is_known_by_the_sizes_of_its_weights(gpt2):
    found = find_base(str(gpt2))
    assert found.differs == "its architecture gpt2 is none of llama, mistral, qwen2, qwen3"
    assert {one.name.partition(".h.")[2] for one in found.matrices} == {name.partition(".h.")[2] for name in NAMES}
    assert [one.name for one in found.shape.linears] == ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]
    assert (
        found.shape.parameters
        == sum(header["data_offsets"][1] - header["data_offsets"][0] for header in _headers(gpt2 / "model.safetensors"))
        // 4
    )
    assert (found.shape.hidden, found.shape.layers, found.positions, found.vocabulary) == (32, 2, 64, 264)


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        ("gpt2", {"vocab_size": 10**7}, "config.json states vocab_size 10,000,000, which no weight has"),
        ("gpt2", {"n_embd": 2**20}, "config.json states n_embd 1,048,576, which no weight has"),
        ("gpt2", {"n_layer": 1000}, "config.json states n_layer 1,000; its weights have 2 blocks"),
        ("gpt2", {"n_layer": 10**9}, "n_layer: 1000000000 is not a whole number from 1 to 1,000"),
        ("gpt2", {"n_embd": "7"}, "n_embd: '7' is not a whole number"),
        ("gpt2", {"vocab_size": -1}, "vocab_size: -1 is not a whole number"),
        ("gpt2", {"n_positions": 10**8}, "n_positions is 100000000, not a whole number from 1 to 16,777,216"),
        ("mixtral", {"hidden_size": 2**40}, "hidden_size is 1099511627776, not a whole number"),
        ("mixtral", {"num_local_experts": 10**6}, "num_local_experts is 1000000, not a whole number from 1 to 10,000"),
        ("gemma3", {"text_config": {"vocab_size": 10**12}}, "vocab_size is 1000000000000, not a whole number"),
    ],
)
def test_numbers_that_are_not_those_of_the_weights_are_refused_before_a_module_is_made(
    tmp_path_factory, tmp_path, family, changed, words
):
    base = tmp_path / "base"
    shutil.copytree(_made(tmp_path_factory, family), base)
    _state(base, changed)
    with pytest.raises(BadInput) as raised:
        find_base(str(base))
    assert words in raised.value.message


def test_what_makes_a_module_fail_is_told_when_it_is_loaded(tmp_path_factory, tmp_path):
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    base = tmp_path / "base"
    shutil.copytree(_made(tmp_path_factory, "mixtral"), base)
    _state(base, {"num_experts_per_tok": 10**8})
    with pytest.raises(BadInput, match=r"transformers can't compute with .*index k out of range"):
        load_transformers(base)


_MADE: dict[str, Path] = {}


def _made(factory: pytest.TempPathFactory, family: str) -> Path:
    if family not in _MADE:
        _MADE[family] = general_base(factory.mktemp(family) / "base", family)
    return _MADE[family]


def _state(base: Path, changed: dict[str, Any]) -> None:
    config = json.loads((base / "config.json").read_bytes())
    for key, value in changed.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (base / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "line",
    [
        "from stoker.cookbooks.language.compute.transformers_base import load_transformers as load",
        "from stoker.cookbooks.language.tokens import open_tokenizer as load",
    ],
)
def test_kernels_of_the_hub_are_never_asked_for(gpt2, tmp_path, line):
    version = re.search(r'KERNELS_MIN_VERSION = "([\d.]+)"', _source_of("transformers", "utils/import_utils.py"))
    assert version is not None
    (tmp_path / f"kernels-{version[1]}.dist-info").mkdir()
    (tmp_path / f"kernels-{version[1]}.dist-info" / "METADATA").write_text(f"Name: kernels\nVersion: {version[1]}\n")
    (tmp_path / "kernels.py").write_text("raise SystemExit('kernels were asked for')\n")
    asked = "from transformers.utils import import_utils; assert not import_utils.is_kernels_available()"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path; {line}; "
    code += f"load(Path({str(gpt2)!r})); {asked}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _source_of(package: str, name: str) -> str:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / name).read_text(encoding="utf-8")


def _headers(file: Path) -> list[dict[str, Any]]:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return [one for name, one in json.loads(content[8 : 8 + size]).items() if name != "__metadata__"]


def test_without_weights_a_base_with_experts_is_as_large_as_all_of_them():
    mixtral = {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    }  # fmt: skip
    assert 46.7e9 < general_shape(mixtral, {}).model.parameters < 1.05 * 46.7e9


def test_a_config_without_sizes_is_refused():
    with pytest.raises(BadInput, match=r"config\.json: hidden_size is missing"):
        general_shape({"model_type": "novel"}, {})


def test_words_for_targets_are_settled_by_the_module_and_are_part_of_the_work(gpt2):
    plan = compiled("lora", base=str(gpt2), targets=["attention"], rank=4, samples=["1+1="])
    assert plan.node("train_lora").args["targets"] == ("attention",)
    assert [plan.node(name).args["path"] for name in ("train_lora", "sample")] == ["auto", "auto"]
    whole = compiled("lora", base=str(gpt2), rank=4)
    assert whole.node("train_lora").needs.memory_gib > plan.node("train_lora").needs.memory_gib


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"path": "fast"}, "path", "gpt2 can't take the fast path: its architecture gpt2 is none of llama"),
        ({"targets": ["c_atn"]}, "targets", "no matrix 'c_atn' in this gpt2 model | did you mean 'c_attn'?"),
        ({"targets": ["*.nothing"]}, "targets", "its matrices are c_attn, c_proj, c_fc; or all-linear, attention, mlp"),
        ({"modules_to_save": ["wpe"]}, "modules_to_save", "'wpe' is neither embedding nor head of this gpt2 model"),
        ({"rank": 33}, "rank", "33 is larger than c_attn, which is 32 × 96 | rank=32 at most"),
        ({"max_seq_len": 65}, "max_seq_len", "65 tokens, but gpt2 reads 64 at most"),
    ],
)
def test_what_such_a_base_can_not_do_is_refused_before_anything_runs(gpt2, given, where, message):
    faults = faults_of("lora", base=str(gpt2), **{"rank": 4, **given})
    assert list(faults) == [where]
    assert message in faults[where]


def test_adapters_on_different_paths_do_not_share_a_process(gpt2):
    words = [shared("tiny", path=path).share_key for path in ("auto", "fast", "general")]
    assert len(set(words)) == 3
    assert shared(gpt2).share_key != shared(gpt2, path="general").share_key


def test_adapters_that_train_other_modules_whole_do_not_share_a_process(gpt2):
    heads, both = (("lm_head",), ("wte", "lm_head"))
    words = [shared(gpt2, modules_to_save=one).share_key for one in ((), heads, both, both[::-1])]
    assert len(set(words)) == 3
    assert words[2] == words[3]
    plain, one, two = (shared(gpt2, modules_to_save=one) for one in ((), heads, both))
    assert one.member_bytes - plain.member_bytes >= 264 * 32 * 5 * 4
    assert two.member_ram_bytes > one.member_ram_bytes > plain.member_ram_bytes


def test_a_pattern_that_means_all_blocks_is_a_name_on_the_fast_path():
    plan = compiled("lora", targets=["*.q_proj", "model.layers.1.mlp.up_proj"])
    assert plan.node("train_lora").args["targets"] == ("q_proj", "layers.1.mlp.up_proj")


def test_autograd_keeps_more_than_the_fast_path(gpt2):
    shape = find_base("tiny").shape
    fast = estimate_adapters(read_adapters(shape, ["adapters=4"]))
    general = estimate_adapters(MultiAdapterTraining(shape=shape, adapters=4, is_general=True))
    # Of the loss, whose size is that of its chunk.
    assert general.needs.base_bytes > fast.needs.base_bytes
    assert general.needs.member_bytes > 1.2 * fast.needs.member_bytes


def test_attention_without_a_kernel_holds_its_scores():
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    long, short = (
        {
            family: estimate_adapters(
                MultiAdapterTraining(
                    shape=general_shape(
                        {**config, "model_type": family}, {"model.layers.0.mlp.up.weight": (64, 64)}
                    ).model,
                    sequence=sequence,
                    is_general=True,
                )
            ).needs.member_bytes
            for family in ("gemma2", "gemma3_text")
        }
        for sequence in (2048, 256)
    )
    assert long["gemma2"] / long["gemma3_text"] > short["gemma2"] / short["gemma3_text"] > 1


def test_a_base_that_reads_images_learns_text(tmp_path):
    base = general_base(tmp_path / "base", "gemma3")
    found = find_base(str(base))
    assert (found.shape.hidden, found.vocabulary, len(found.matrices)) == (32, 264, 14)
    plan = compiled("lora", base=str(base), rank=4, steps=2, batch=2, max_seq_len=64)
    examples = run_node(plan, "tokenise", tmp_path)
    adapter = run_node(plan, "train_lora", tmp_path, examples=examples)
    config = json.loads((adapter.path / "adapter_config.json").read_text())
    assert {name.rpartition(".")[2] for name in config["target_modules"]} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }


def adapter_of_text_only(base: Path, folder: Path, whole: list[str] | None) -> Any:
    """Write an adapter of PEFT over the class of Gemma 3 that reads text only; return its logits."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Gemma3ForCausalLM

    both = AutoModelForCausalLM.from_pretrained(base)
    text = Gemma3ForCausalLM(both.config.text_config)
    text.model.load_state_dict(both.model.language_model.state_dict())
    text.lm_head.load_state_dict(both.lm_head.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(
            r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False,
            modules_to_save=whole,
        )  # fmt: skip
        model = get_peft_model(text, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.copy_(parameter.flip(0))
        model.save_pretrained(folder, save_embedding_layers=False)
        return model(torch.tensor(PROMPT)).logits[:, -1]


PROMPT = [[5, 80, 13, 200, 7, 7, 91]]
PLAINLY = SampleArgs(base=InputPath(""), base_files=(), base_name="", prompts=(), dtype="float32")


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="there is no PEFT here")
@pytest.mark.parametrize("whole", [None, ["lm_head"]])
def test_an_adapter_of_a_class_that_names_its_blocks_otherwise_answers_and_is_merged(tmp_path, whole):
    import torch

    base, folder = general_base(tmp_path / "base", "gemma3"), tmp_path / "adapter"
    theirs = adapter_of_text_only(base, folder, whole)
    compiled("sample", base=str(base), adapter=[str(folder)], prompts=["1+1="])
    slots, _ = open_slots(base, [read_adapter(folder), None], PLAINLY, device="cpu")
    assert torch.allclose(slots.logits(0, torch.tensor(PROMPT)), theirs, atol=1e-4)
    assert not torch.allclose(slots.logits(1, torch.tensor(PROMPT)), theirs, atol=1e-2)
    merged = run_node(compiled("merge", base=str(base), adapter=str(folder)), "merge_weights", tmp_path)
    alone, _ = open_slots(merged.path, [None], PLAINLY, device="cpu")
    assert torch.allclose(alone.logits(0, torch.tensor(PROMPT)), theirs, atol=1e-4)


def test_a_part_of_an_adapter_that_slots_have_no_place_for_is_refused(gpt2):
    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.general_base import load_general
    from stoker.cookbooks.language.compute.slots import Slots

    base = load_general(gpt2, device="cpu", dtype="float32")
    adapter = fresh_adapter(base.shape, AdapterSpec(rank=2, alpha=2.0, targets=("c_attn", "c_fc")))
    slots = Slots(base, count=1, rank=2, targets=("c_attn",))
    with pytest.raises(BadInput, match=r"a part for transformer\.h\.0\.mlp\.c_fc, which is no target here"):
        slots.load(0, adapter)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("model.layers.0.q_proj", "model.language_model.layers.0.q_proj"),
        ("model.language_model.layers.0.q_proj", "model.language_model.layers.0.q_proj"),
        ("model.vision_tower.layers.0.q_proj", "model.vision_tower.layers.0.q_proj"),
        ("vision_tower.encoder.layers.0.q_proj", None),
        ("model.layers.1.q_proj", None),
        ("model.embed_tokens", "model.language_model.embed_tokens"),
        ("lm_head", None),
    ],
)
def test_modules_of_an_adapter_are_named_as_in_the_base_where_that_is_clear(module, name):
    prefixes = ("model.language_model", "model.vision_tower")
    base = [
        *(f"{one}.layers.0.q_proj" for one in prefixes),
        "model.language_model.embed_tokens",
        "a.lm_head",
        "b.lm_head",
    ]
    assert named_as(base, [module]).get(module) == name


def test_layers_that_predict_several_tokens_are_no_place_of_an_adapter():
    base = ["model.language_model.layers.0.mlp.up_proj", "mtp.layers.0.mlp.up_proj"]
    assert named_as(base, ["model.layers.0.mlp.up_proj"]) == {"model.layers.0.mlp.up_proj": base[0]}


def test_two_modules_of_an_adapter_are_not_one_of_the_base():
    found = named_as(["a.layers.0.q_proj"], ["b.layers.0.q_proj", "a.layers.0.q_proj", "c.layers.0.q_proj"])
    assert found == {"a.layers.0.q_proj": "a.layers.0.q_proj"}


def test_an_adapter_over_such_a_base_goes_through_all_stages(gpt2, tmp_path):
    plan = compiled(
        "lora", base=str(gpt2), targets=["attention"], rank=4, steps=3, batch=2, max_seq_len=64, packing=True,
        samples=["1+1="], sample_tokens=4, dora=True, modules_to_save=["lm_head"],
    )  # fmt: skip
    examples = run_node(plan, "tokenise", tmp_path)
    told: list[dict[str, Any]] = []
    adapter = run_node(plan, "train_lora", tmp_path, said=told, examples=examples)
    log = "\n".join(str(one) for one in told)
    assert "general path: its architecture gpt2" in log
    assert "rows are padded" not in log
    samples = run_node(plan, "sample", tmp_path, adapter=adapter)
    report = run_node(plan, "report_lora_samples", tmp_path, adapter=adapter, samples=samples)
    config = json.loads((report.path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["attn.c_proj", "c_attn"]
    assert config["fan_in_fan_out"] is config["use_dora"] is True
    assert config["modules_to_save"] == ["lm_head"]
    assert "gpt2" in (report.path / "model-card.md").read_text()
