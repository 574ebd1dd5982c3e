from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InvalidArgs
from stoker.cookbooks.language import COOKBOOK
from stoker.cookbooks.language.bases import read_base
from stoker.cookbooks.language.bundled import TinyShape, bundled_base, write_base
from stoker.cookbooks.language.recipes import LoraRecipeArgs
from stoker.cookbooks.language.train_lora import train_lora
from stoker.core import jsontext
from stoker.core.digests import digest_bytes
from stoker.core.frozen import changed
from stoker.devices.admission import Admission, AdmissionDelay, MachineMemory, admit
from stoker.devices.estimate.terms import context_bytes_of
from stoker.engine.args import ArgsSchema
from stoker.engine.code_identity import CodeIdentity, missing_of
from stoker.engine.permits import hint_of_less
from stoker.engine.recipe import MachineContext, surrounded_by
from stoker.jobs.trials import settled
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG
from tests.unit.cookbooks.language.walked_language import compiled

DPO = {"method": "dpo", "data": "preferences"}
ORPO = {"method": "orpo", "data": "preferences"}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def faults_of(name: str, **given: Any) -> dict[str, str]:
    with pytest.raises(InvalidArgs) as caught:
        compiled(name, **given)
    return {fault.where.rpartition(".")[2]: f"{fault.message} | {fault.hint}" for fault in caught.value.faults}


def test_an_adapter_is_tokenised_trained_and_reported():
    plan = compiled("lora")
    assert [node.id for node in plan.nodes] == ["tokenise", "train_lora", "report_lora"]
    args = plan.node("train_lora").args
    assert (args["rank"], args["alpha"], args["targets"]) == (16, 32.0, LINEARS)
    assert args["max_seq_len"] == 512
    assert args["base"] == str(bundled_base("tiny"))
    assert args["base_name"] == "tiny"


@pytest.mark.parametrize(("name", "imports_torch"), [("lora", False), ("full", True)])
def test_torch_is_imported_for_all_only_if_a_stage_outside_of_shared_processes_uses_it(name: str, imports_torch: bool):
    stages = [node.stage for node in compiled(name).nodes if not node.stage.together]
    modules = COOKBOOK.preload_for(stages)
    assert ("torch" in modules) is imports_torch
    assert {"numpy", "tokenizers", "matplotlib.figure"} <= set(modules)
    assert set(modules) <= set(COOKBOOK.preload)


def test_a_prompt_to_complete_is_no_part_of_the_training():
    plain, asked = compiled("lora"), compiled("lora", samples=["1+1="])
    assert [node.id for node in asked.nodes] == ["tokenise", "train_lora", "sample", "report_lora_samples"]
    assert asked.node("train_lora").args == plain.node("train_lora").args


def test_a_base_whose_matrices_do_not_divide_into_blocks_is_refused_in_four_bits(tmp_path: Path):
    odd = write_base(tmp_path / "odd", TinyShape(hidden=32, inner=33))
    assert faults_of("lora", base=str(odd), base_dtype="nf4") == {
        "base_dtype": "gate_proj is 33 × 32, no multiple of 64 weights | leave it out"
    }
    plan = compiled("lora", base_dtype="nf4", samples=["1+1="])
    assert [plan.node(name).args["base_dtype"] for name in ("train_lora", "sample")] == ["nf4", "nf4"]


def test_every_weight_is_trained_by_another_recipe_that_keeps_the_model():
    plan = compiled("full", samples=["1+1="])
    assert [node.id for node in plan.nodes] == ["tokenise", "train_full", "sample_model", "report_full_samples"]
    assert plan.keep == ("train_full",)
    assert plan.node("train_full").args["lr"] == 2e-5


def test_targets_are_named_one_by_one_or_in_groups_and_stand_in_a_blocks_order():
    assert compiled("lora", targets=["mlp"]).node("train_lora").args["targets"] == LINEARS[4:]
    assert compiled("lora", targets=["v_proj", "q_proj"]).node("train_lora").args["targets"] == ("q_proj", "v_proj")
    assert compiled("lora", targets=["attention", "up_proj"]).node("train_lora").args["targets"] == (
        *LINEARS[:4],
        "up_proj",
    )


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"rank": 0}, "rank", "at least 1"),
        ({"rank": 33}, "rank", "33 is larger than k_proj, which is 32 × 64 | rank=32 at most"),
        ({"targets": ["q_prj"]}, "targets", "no matrix 'q_prj' in this llama model | did you mean 'q_proj'?"),
        ({"targets": ["nothing"]}, "targets", "its matrices are q_proj, k_proj, v_proj, o_proj, gate_proj"),
        ({"targets": []}, "targets", "no target matrices"),
        (
            {"modules_to_save": ["norm"]},
            "modules_to_save",
            "'norm' is neither embedding nor head of this llama model | these are model.embed_tokens and lm_head",
        ),
        ({"max_seq_len": 4096}, "max_seq_len", "4,096 tokens, but tiny reads 2,048 at most | max_seq_len=2048"),
        ({"base": ""}, "base", "is empty"),
        ({"base": "./nowhere"}, "base", "folder not found: ./nowhere"),
        ({"base": "tinny"}, "base", "did you mean 'tiny'?"),
        ({"base": "some/model"}, "base", "nor in the hub's cache | stoker fetch some/model"),
        ({"data": "summs"}, "data", "neither a file nor bundled data | did you mean 'sums'?"),
        ({"data": "./gone.jsonl"}, "data", "file not found: ./gone.jsonl"),
        ({"data": "/dev/zero"}, "data", "/dev/zero is no regular file | copy what it gives into a file"),
        ({"data": " "}, "data", "is empty"),
        (
            {"data": "preferences"},
            "data",
            "preferences has pairs; method=sft does not learn from pairs | method=dpo or method=orpo",
        ),
        ({"method": "orpo"}, "data", "sums has no pairs; method=orpo learns from pairs | data=preferences"),
        ({"method": "ppo"}, "method", "sft, dpo, orpo"),
        ({"beta": 0.2}, "beta", "has no effect with method=sft | leave it out, or method=dpo"),
        ({"loss_type": "ipo"}, "loss_type", "has no effect with method=sft"),
        ({**ORPO, "loss_type": "ipo"}, "loss_type", "has no effect with method=orpo"),
        ({**DPO, "beta": 0}, "beta", "more than 0"),
        ({**DPO, "packing": True}, "packing", "pairs are not packed | leave it out"),
        ({**DPO, "train_on": "all"}, "train_on", "has no effect with method=dpo"),
        ({"dropout": 1.0}, "dropout", "less than 1"),
        ({"lr": 0.0}, "lr", "more than 0"),
        ({"lr": math.inf}, "lr", "at most 1000000"),
        ({"alpha": math.inf}, "alpha", "at most 1000000"),
        ({"weight_decay": math.inf}, "weight_decay", "at most 1000000"),
        ({"threads": 100_000}, "threads", "at most 1024"),
        ({"warmup_percent": 100.0}, "warmup_percent", "less than 100"),
        ({"holdout_percent": 0.0}, "holdout_percent", "more than 0"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(given, where, message):
    faults = faults_of("lora", **given)
    assert list(faults) == [where]
    assert message in faults[where]


def test_a_method_and_its_defaults_are_written_into_the_work(tmp_path):
    def settings(**given: Any) -> tuple[Any, ...]:
        args = compiled("lora", **given).node("train_lora").args
        return args["method"], args["beta"], args["loss_type"]

    assert settings() == ("sft", None, None)
    assert settings(**DPO) == settings(**DPO, beta=0.1, loss_type="sigmoid") == ("dpo", 0.1, "sigmoid")
    assert settings(**ORPO) == settings(**ORPO, train_on="all") == ("orpo", 0.1, None)
    assert [compiled("lora", **given).node("tokenise").args["is_paired"] for given in ({}, DPO)] == [False, True]
    text = tmp_path / "plain.txt"
    text.write_text("some text")
    assert faults_of("lora", method="dpo", data=str(text))["data"].endswith("it has no pairs | a JSONL file")
    assert "language/lora learns | method=dpo" in faults_of("full", data="preferences")["data"]


def test_a_pair_asks_for_the_memory_of_two_rows():
    pairs, rows = compiled("lora", **DPO, batch=4, gpus=0), compiled("lora", batch=8, gpus=0)
    needs = [plan.node("train_lora").needs for plan in (pairs, rows)]
    assert needs[0].memory_gib == needs[1].memory_gib
    assert needs[0].memory_gib > (compiled("lora", batch=4, gpus=0).node("train_lora").needs.memory_gib or 0)


def test_everything_that_is_wrong_is_told_at_once():
    given = {"rank": 4000, "targets": ["q_proj", "qq"], "max_seq_len": 9999, "data": "gone.jsonl"}
    assert set(faults_of("lora", **given)) == {"rank", "targets", "max_seq_len", "data"}
    assert set(faults_of("lora", base="nowhere", data="gone.jsonl")) == {"base", "data"}
    assert set(faults_of("full", base="nowhere", data="gone.jsonl")) == {"base", "data"}


def test_a_base_that_comes_by_itself_is_no_fault_beside_others():
    assert set(faults_of("lora", base="org/name", data="gone.jsonl")) == {"base", "data"}
    with surrounded_by(MachineContext(fetches=lambda: True)):
        assert set(faults_of("lora", base="org/name", data="gone.jsonl")) == {"data"}
        assert set(faults_of("lora", base="org/name")) == {"base"}


def test_an_empty_file_is_no_data(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "is empty" in faults_of("lora", data=str(tmp_path / "empty.jsonl"))["data"]


def test_a_base_with_few_positions_shortens_the_rows_by_itself(tmp_path):
    base = write_base(tmp_path / "short", TinyShape(positions=128))
    plan = compiled("lora", base=str(base))
    assert plan.node("train_lora").args["max_seq_len"] == 128
    assert plan.node("tokenise").args["max_seq_len"] == 128


def test_a_place_is_no_part_of_the_work_and_another_weight_is(tmp_path):
    first, same, other = (
        write_base(tmp_path / name, TinyShape(seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )

    def identity(base: Path, node: str) -> Any:
        one = compiled("lora", base=str(base)).node(node)
        return one.stage.args.identity(one.args, lambda path: str(hash(Path(path).read_bytes())))

    assert identity(first, "train_lora") == identity(same, "train_lora")
    assert identity(first, "train_lora") != identity(other, "train_lora")
    # Tokens depend on the tokenizer alone.
    assert identity(first, "tokenise") == identity(other, "tokenise")


@pytest.mark.parametrize(
    ("said", "is_known_by_files"),
    [
        ({}, True),
        ({"tokenizer_class": "Qwen2Tokenizer"}, False),
        ({"add_prefix_space": True}, False),
        ({"tokenizer_class": None}, False),
    ],
)
def test_the_family_of_a_base_is_part_of_its_tokens_where_it_decides_the_class_of_the_tokenizer(
    tmp_path, said, is_known_by_files
):
    def identity(name: str, family: Any, **changes: Any) -> Any:
        base = write_base(tmp_path / name, TinyShape(family=family))
        for file, more in (("tokenizer_config.json", said), ("config.json", changes)):
            path = base / file
            path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
        one = compiled("lora", base=str(base)).node("tokenise")
        return one.stage.args.identity(one.args, lambda path: digest_bytes(Path(path).read_bytes()))

    of_llama = identity("a", "llama")
    assert (of_llama == identity("b", "qwen2")) is is_known_by_files
    assert (of_llama == identity("c", "llama", tokenizer_class="LlamaTokenizer")) is is_known_by_files
    assert of_llama == identity("d", "llama", rms_norm_eps=1e-5)


def test_stages_that_render_templates_of_chats_need_what_renders_them():
    rendering = [one for one in COOKBOOK.stages if "tokenizers" in one.uses and one.name != "language/export_model"]
    assert len(rendering) == 5
    assert all("jinja2" in one.uses for one in rendering)


def test_without_a_word_about_gpus_one_is_asked_for_if_there_is_one():
    def asks(found: int, **given: Any) -> Any:
        with surrounded_by(changed(MachineContext(), count_gpus=lambda: found)):
            return compiled("lora", **given).node("train_lora").asks

    on_cpu, on_gpu = asks(0), asks(4)
    assert (on_cpu.gpu, on_cpu.vram_gib, on_cpu.shares) == (0, 0.0, False)
    assert 0 < on_cpu.base_memory_gib < on_cpu.memory_gib
    assert (on_gpu.gpu, on_gpu.memory_gib, on_gpu.shares) == (1, 0.0, True)
    assert 0 < on_gpu.base_gib < on_gpu.vram_gib
    assert asks(4, gpus=0).gpu == 0
    assert asks(0, gpus=1).gpu == 1
    assert asks(4, most=3).most == 3


def test_kernels_are_counted_where_they_can_be_compiled_and_on_machines_that_are_not_known(monkeypatch):
    def needs(can: bool, **around: Any) -> Any:
        monkeypatch.setattr("stoker.cookbooks.language.memory_needs.can_compile", lambda: can)
        with surrounded_by(changed(MachineContext(), **around)):
            return compiled("lora", gpus=1, batch=64).node("train_lora").needs

    here = {"count_gpus": lambda: 1, "rooms": lambda: {"A Card": 80 << 30}}
    assert needs(False, **here).vram_gib > needs(True, **here).vram_gib
    assert needs(False).vram_gib == needs(True).vram_gib


def test_what_no_device_could_ever_hold_is_refused_with_numbers_and_what_would_fit():
    around = changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {"Small Card": 1 << 30})
    with surrounded_by(around):
        told = faults_of("lora", batch=64, max_seq_len=2048)["gpus"]
        assert compiled("lora").node("train_lora").asks is not None
        # Elsewhere, or on the CPU, that card does not matter.
        assert compiled("lora", batch=64, max_seq_len=2048, gpus=0).node("train_lora").asks is not None
    assert "one adapter takes " in told
    assert "Small Card has 1.0 GiB" in told
    assert "would fit: batch=" in told
    assert "max_seq_len=" in told


def on_a_machine_of(total_bytes: int, hub: Path) -> MachineContext:
    memory = MachineMemory(total_bytes=total_bytes, available_bytes=total_bytes // 2)
    return changed(MachineContext(), memory=lambda: memory, hub_cache=lambda: str(hub))


def test_what_the_machine_s_own_memory_could_never_hold_is_refused_alike(tmp_path: Path):
    with surrounded_by(on_a_machine_of(2 << 30, tmp_path)):
        told = faults_of("lora", batch=64, max_seq_len=2048)["base"]
        assert compiled("lora").node("train_lora").asks is not None
        # Where a GPU computes, that memory is not asked for.
        assert compiled("lora", batch=64, max_seq_len=2048, gpus=1).node("train_lora").asks is not None
    assert "one adapter takes " in told
    assert (
        "this machine has 1.8 GiB (of 2.0 GiB; the rest is reserved for the system; 819.2 MiB of it free now)" in told
    )
    assert "would fit: batch=" in told
    assert "max_seq_len=" in told


def test_a_training_of_every_weight_that_has_no_room_is_refused_alike(tmp_path: Path):
    much: dict[str, Any] = {"batch": 64, "max_seq_len": 2048}
    with surrounded_by(on_a_machine_of(2 << 30, tmp_path)):
        told = faults_of("full", **much)["base"]
        assert compiled("full").node("train_full").asks is not None
        assert compiled("full", **much, gpus=1).node("train_full").asks is not None
    assert "training every weight takes " in told
    assert "this machine has 1.8 GiB (of 2.0 GiB; the rest is reserved for the system; " in told
    assert "would fit: batch=" in told
    assert "max_seq_len=" in told
    large = write_base(tmp_path / "large", TinyShape(hidden=256, inner=512))
    with surrounded_by(on_a_machine_of(590 << 20, tmp_path)):
        told = faults_of("full", base=str(large), batch=1, max_seq_len=64)["base"]
    assert "would fit: base=tiny takes " in told
    with surrounded_by(changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {"Small Card": 1 << 30})):
        told = faults_of("full", **much)["gpus"]
        assert compiled("full").node("train_full").asks is not None
    assert "Small Card has 1.0 GiB" in told


def test_blocks_are_computed_again_where_they_would_not_fit(tmp_path: Path):
    base = write_base(tmp_path / "deep", TinyShape(layers=8))
    much: dict[str, Any] = {"base": str(base), "batch": 16, "max_seq_len": 2048, "gpus": 1}

    def args(memory_bytes: int, **given: Any) -> Any:
        with surrounded_by(changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {"A Card": memory_bytes})):
            return compiled("full", **much, **given).node("train_full").args

    plain, again = (
        compiled("full", **much, gradient_checkpointing=one).node("train_full").asks for one in ("false", "true")
    )
    assert plain is not None
    assert again is not None
    between = int((plain.vram_gib + again.vram_gib) / 2 * (1 << 30))
    assert again.vram_gib < 0.8 * plain.vram_gib
    assert args(between)["gradient_checkpointing"] is True
    assert args(140 << 30)["gradient_checkpointing"] is False
    with surrounded_by(changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {"A Card": between})):
        assert "gradient_checkpointing=true takes " in faults_of("full", **much, gradient_checkpointing="false")["gpus"]


def test_optimisers_and_ranks_ask_for_the_memory_of_their_states(tmp_path: Path):
    large = write_base(tmp_path / "large", TinyShape(hidden=256, inner=2048, layers=8))
    every_bytes = 4 * read_base(large).shape.parameters

    def asks(**given: Any) -> Any:
        return compiled("full", base=str(large), batch=2, max_seq_len=64, **given).node("train_full").asks

    def more_bytes(gpus: int, **given: Any) -> float:
        one, other = asks(gpus=gpus, **given), asks(gpus=gpus)
        return float((one.vram_gib - other.vram_gib if gpus else one.memory_gib - other.memory_gib) * (1 << 30))

    assert more_bytes(0, optimizer="adafactor") == pytest.approx(-2 * every_bytes, rel=0.1)
    assert more_bytes(1, optimizer="adafactor", dtype="float32") < -1.5 * every_bytes
    assert more_bytes(1, optimizer="adamw8bit", dtype="float32") < -1.2 * every_bytes
    # Beside masters, the weights that are computed with.
    assert more_bytes(0, dtype="bfloat16") == pytest.approx(every_bytes / 2, rel=0.2)
    two = asks(gpus=1, ranks=2)
    assert (two.ranks, two.gpu, two.cpu, two.shares) == (2, 2, 2, False)
    assert asks(gpus=1).vram_gib - two.vram_gib > every_bytes / (1 << 30)
    assert asks(gpus=0, ranks=2).memory_gib > asks(gpus=0).memory_gib


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"ranks": 3, "batch": 2}, "ranks", "3 ranks, but a batch has 2 rows | batch=3, or ranks=2"),
        ({"optimizer": "adafactor", "ranks": 2}, "optimizer", "works with one rank only | optimizer=adamw, or ranks=1"),
        ({"optimizer": "sgd"}, "optimizer", "adamw, adamw8bit, adafactor"),
        ({"gradient_checkpointing": "some"}, "gradient_checkpointing", "auto, true, false"),
    ],
)
def test_what_a_training_of_every_weight_can_not_have_is_refused(given, where, message):
    faults = faults_of("full", **given)
    assert list(faults) == [where]
    assert message in faults[where]


def test_a_training_of_every_weight_asks_for_the_context_that_such_a_device_has():
    def asks(name: str) -> float:
        around = changed(MachineContext(), count_gpus=lambda: 1, rooms=lambda: {name: 140 << 30})
        with surrounded_by(around):
            asked: Any = compiled("full").node("train_full").asks
            return float(asked.vram_gib)

    more_gib = asks("NVIDIA H200") - asks("Some Card")
    context_bytes = [context_bytes_of(name)[0] for name in ("NVIDIA H200", "Some Card")]
    assert more_gib * (1 << 30) == pytest.approx(context_bytes[0] - context_bytes[1])
    # What the driver counted there for the bundled base.
    assert asks("NVIDIA H200") * 1024 > 826


def test_bases_that_would_fit_are_named_where_nothing_but_another_one_helps(tmp_path: Path):
    large = write_base(tmp_path / "large", TinyShape(hidden=256, inner=512))
    cached = tmp_path / "hub" / "models--lab--small"
    write_base(cached / "snapshots" / ("c" * 40), TinyShape(layers=1))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("c" * 40)
    with surrounded_by(on_a_machine_of(574 << 20, tmp_path / "hub")):
        told = faults_of("lora", base=str(large), rank=1, batch=1, max_seq_len=64)["base"]
    assert "would fit: base=tiny takes " in told
    assert "base=lab/small takes " in told


def test_what_decides_which_text_is_evaluated_sets_trials_apart():
    args = ArgsSchema(LoraRecipeArgs)
    values, faults = args.check({"data": "chats", "rank": 4}, owner="x")
    assert not faults
    expected = {"data": "chats", "max_seq_len": None, "train_on": "completion", "holdout_percent": 5.0}
    assert args.measured_on(values) == expected
    # What is left out is what the plan makes of it.
    assert settled(expected, compiled("lora", data="chats")) == {**expected, "max_seq_len": 512}
    assert settled({**expected, "max_seq_len": 64}, compiled("lora", max_seq_len=64))["max_seq_len"] == 64


def test_what_a_stage_computes_in_is_settled_before_its_key_is_made():
    def widths(**given: Any) -> set[str]:
        plans = (compiled(name, samples=["x"], **given) for name in ("lora", "full"))
        return {node.args["dtype"] for plan in plans for node in plan.nodes if "dtype" in node.args}

    assert widths(gpus=0) == widths(gpus=1, dtype="float32") == {"float32"}
    assert widths(gpus=1) == widths(gpus=0, dtype="bfloat16") == {"bfloat16"}
    with surrounded_by(changed(MachineContext(), count_gpus=lambda: 1)):
        assert widths() == {"bfloat16"}


def test_completing_prompts_asks_for_one_row_and_shares_no_process():
    plan = compiled("lora", samples=["x"], gpus=1, batch=64)
    trained, sampled = plan.node("train_lora").asks, plan.node("sample").asks
    assert trained is not None
    assert sampled is not None
    assert 0 < sampled.vram_gib < trained.vram_gib
    assert (sampled.gpu, sampled.base_gib, sampled.most) == (1, 0.0, 0)


def test_every_weight_asks_for_memory_by_its_rows():
    for gpus, kept in ((0, "memory_gib"), (1, "vram_gib")):
        full, lora = (compiled(name, gpus=gpus).node(f"train_{name}").asks for name in ("full", "lora"))
        assert getattr(full, kept) > 0
        assert getattr(lora, kept) > 0
    large = compiled("full", gpus=1, batch=64).node("train_full").asks
    small = compiled("full", gpus=1, batch=1).node("train_full").asks
    assert large is not None
    assert small is not None
    assert large.vram_gib > small.vram_gib


def test_more_rows_and_a_higher_rank_ask_for_more_memory():
    def memory_gib(**given: Any) -> float:
        asks = compiled("lora", gpus=1, **given).node("train_lora").asks
        assert asks is not None
        return float(asks.vram_gib)

    assert memory_gib(batch=64, max_seq_len=2048) > memory_gib()
    assert memory_gib(rank=32) > memory_gib(rank=1)


def test_members_of_one_shared_process_have_base_and_width_in_common():
    together = train_lora.together
    assert together is not None
    args = train_lora.args.make(compiled("lora").node("train_lora").args)
    other = train_lora.args.make(compiled("lora", rank=4, lr=0.1, data="lines").node("train_lora").args)
    narrow = train_lora.args.make(compiled("lora", dtype="bfloat16").node("train_lora").args)
    word = together.key(args, {"base_files": ("1", "2"), "examples": ("3",)})
    assert word == together.key(other, {"base_files": ("1", "2"), "examples": ("4",)})
    assert word != together.key(args, {"base_files": ("1", "5"), "examples": ("3",)})
    assert word != together.key(narrow, {"base_files": ("1", "2"), "examples": ("3",)})


def test_what_does_not_change_the_result_is_not_part_of_the_work():
    runtime = {
        recipe.leaf: {name for name, spec in recipe.args.specs.items() if spec.is_runtime}
        for recipe in COOKBOOK.recipes
    }
    everywhere = {"base_name", "checkpoint_every", "checkpoints", "gpus", "label", "threads"}
    of_full = {*everywhere, "gradient_checkpointing", "ranks"}
    of_lora = {*everywhere, "turns", "most", "adapter_index"}
    of_sample = {"base_name", "gpus"}
    assert runtime == {"lora": of_lora, "full": of_full, "sample": of_sample, "merge": set(), "export": set()}


def test_models_answer_beside_each_other_and_their_records_are_part_of_the_work(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _adapter(tmp_path / name)
    (tmp_path / "two" / "training.json").write_text("{}")
    folders = (str(tmp_path / "one"), str(tmp_path / "two"))
    args = compiled("sample", adapter=folders, prompts=("2+3=",), with_base=True).node("answer").args
    assert args["names"] == ("adapter-1", "adapter-2", "base")
    assert args["adapters"] == folders
    files = [os.path.relpath(one, tmp_path) for one in args["adapter_files"]]
    weights = ["adapter_config.json", "adapter_model.safetensors"]
    assert files == [*(f"one/{one}" for one in weights), *(f"two/{one}" for one in weights), "two/training.json"]
    assert compiled("sample", prompts=("x",)).node("answer").args["names"] == ("base",)
    named = {"adapter": folders[:1], "names": ("base",), "prompts": ("x",)}
    assert compiled("sample", **named).node("answer").args["names"] == ("base",)
    assert "base is the name of the base alone" in faults_of("sample", **named, with_base=True)["names"]
    assert "4,096 tokens, but tiny reads 2,048 at most" in faults_of("sample", prompts=("x",), context=4_096)["context"]


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"prompts": ()}, "prompts", "no prompts"),
        ({"adapter": ("gone",)}, "adapter", "folder not found: gone"),
        ({"names": ("a",)}, "names", "0 adapters need as many different names"),
        ({"base": "nowhere"}, "base", "folder not found: nowhere"),
    ],
)
def test_faults_of_prompts_and_models_are_told_before_anything_runs(given, where, message):
    assert message in faults_of("sample", **{"prompts": ("x",), **given})[where]


def test_places_are_meant_from_where_the_user_is(monkeypatch, tmp_path):
    write_base(tmp_path / "mine", TinyShape())
    (tmp_path / "some.jsonl").write_text('{"text": "x"}')
    monkeypatch.chdir(tmp_path)
    plan = compiled("lora", base="mine", data="some.jsonl", checkpoints="kept")
    args = plan.node("train_lora").args
    assert (args["base"], args["base_name"]) == (str(tmp_path / "mine"), "mine")
    assert args["base_files"][0] == str(tmp_path / "mine" / "config.json")
    assert args["checkpoints"] == str(tmp_path / "kept")
    assert compiled("lora", checkpoints="").node("train_lora").args["checkpoints"] is None
    assert plan.node("tokenise").args["file"] == str(tmp_path / "some.jsonl")


def test_every_argument_says_what_it_is_for_and_stages_and_kinds_are_listed():
    for recipe in COOKBOOK.recipes:
        assert recipe.summary
        assert all(spec.help for spec in recipe.args.specs.values()), recipe.name
    plans = [compiled(name, samples=samples) for name in ("lora", "full") for samples in ((), ("x",))]
    used = {node.stage for plan in plans for node in plan.nodes}
    others = {
        "language/answer",
        "language/export_adapter",
        "language/export_model",
        "language/merge_weights",
        "language/tokenise_tables",
        "language/train_full_8bit",
    }
    assert used == {stage for stage in COOKBOOK.stages if stage.name not in others}
    kinds = {stage.output for stage in COOKBOOK.stages} | {port.kind for stage in used for port in stage.ports}
    assert kinds == set(COOKBOOK.kinds)
    assert all(stage.summary and all(spec.help for spec in stage.args.specs.values()) for stage in COOKBOOK.stages)


def test_importing_and_compiling_loads_no_numeric_library():
    program = (
        "import sys\n"
        "from stoker.cookbooks.language import COOKBOOK\n"
        "for recipe in COOKBOOK.recipes[:2]: recipe.compile(recipe.args.build({'samples': ['x']}, owner=recipe.name))\n"
        "heavy = {'numpy', 'torch', 'transformers', 'tokenizers', 'safetensors', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_editing_a_report_or_a_check_trains_nothing_again(tmp_path):
    code = CodeIdentity(str(tmp_path / "code.json"))
    prefix = "stoker.cookbooks.language"
    of_lora = set(code.modules_of(f"{prefix}.train_lora"))
    assert {f"{prefix}.shared.loop", f"{prefix}.compute.slots", f"{prefix}.peft"} <= of_lora
    for name in (
        "recipes",
        "report",
        "checks",
        "memory_needs",
        "bases",
        "train_full",
        "full_training",
        "sample",
    ):
        assert f"{prefix}.{name}" not in of_lora, name
    assert f"{prefix}.full_training" in code.modules_of(f"{prefix}.train_full")


def test_what_is_not_installed_is_told_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    missing = missing_of([train_lora])
    assert missing is not None
    assert missing.hint == f"{sys.executable} -m pip install 'stoker[language]'"


def _adapter(folder: Path) -> None:
    """Write a fresh adapter over the bundled base."""
    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.frozen_base import shape_of
    from stoker.cookbooks.language.peft import write_adapter

    shape = shape_of(jsontext.loads((bundled_base("tiny") / "config.json").read_text()))
    spec = AdapterSpec(rank=4, alpha=8.0, targets=("q_proj",))
    write_adapter(folder, spec, fresh_adapter(shape, spec).weights, base_name="tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "only LORA is supported"),
        ({"lora_bias": True}, "not supported: biases of its own | merge it with PEFT"),
        ({"use_dora": True}, "q_proj is not lora_A, lora_B and lora_magnitude_vector (DoRA)"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern="),
        ({"bias": "all"}, "trained biases"),
        ({"r": 0}, "not a rank and a number"),
        ({"r": 5}, "requires 5×64 and 64×5 | use the base that it was trained on"),
    ],
)
def test_an_adapter_that_can_not_be_merged_is_refused_before_anything_runs(tmp_path, change, message):
    _adapter(tmp_path)
    assert compiled("merge", adapter=str(tmp_path)).final == "merge_weights"
    config = jsontext.loads((tmp_path / ADAPTER_CONFIG).read_text())
    (tmp_path / ADAPTER_CONFIG).write_text(jsontext.dumps({**config, **change}))
    assert message in faults_of("merge", adapter=str(tmp_path))["adapter"]


def test_a_folder_that_is_no_adapter_or_of_another_base_is_refused(tmp_path):
    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.frozen_base import shape_of
    from stoker.cookbooks.language.peft import write_adapter

    assert "folder not found" in faults_of("merge", adapter=str(tmp_path / "gone"))["adapter"]
    assert "has no adapter_config.json" in faults_of("merge", adapter=str(tmp_path))["adapter"]
    deeper = write_base(tmp_path / "deeper", TinyShape(layers=3))
    shape = shape_of(jsontext.loads((deeper / "config.json").read_text()))
    spec = AdapterSpec(rank=4, alpha=8.0, targets=("q_proj",))
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", spec, fresh_adapter(shape, spec).weights, base_name="deeper")
    told = faults_of("merge", adapter=str(tmp_path / "adapter"))["adapter"]
    assert "target matrix model.layers.2.self_attn.q_proj is not in tiny" in told


def test_where_memory_is_short_for_now_the_numbers_that_would_fit_are_told():
    node = compiled("lora", batch=64, max_seq_len=2048).node("train_lora")
    memory = MachineMemory(total_bytes=8 << 30, available_bytes=1700 << 20)
    short = admit(node.needs.memory_bytes, memory)
    assert isinstance(short, AdmissionDelay)
    hint = hint_of_less(node, short)
    assert hint.startswith("close what holds memory, or reduce its needs: batch=")
    fitting = int(hint.partition("batch=")[2].partition(" ")[0])
    needs = compiled("lora", batch=fitting, max_seq_len=2048).node("train_lora").needs
    assert isinstance(admit(needs.memory_bytes, memory), Admission)
