"""`stoker machines estimate` through real processes: what it prints, what it keeps, what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.shared_base import nf4_bytes
from tests.system.shell import Shell

LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture
def config(shell: Shell) -> Path:
    path = shell.folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_the_terms_and_the_total_are_shown_and_where_it_fits(shell: Shell, config: Path) -> None:
    done = shell.stoker("machines", "estimate", "config.json", "batch=4", STOKER_GPU_FAKE="cuda:12GiB,cuda:24GiB")
    assert done.code == 0, done.err
    first, *lines = done.out.splitlines()
    assert first.startswith("llama, 1,100,048,384 parameters, 12,615,680 adapter parameters trained")
    names = ["weights", "adapters", "activations", "logits", "fragmentation", "context", "total"]
    assert [line.split()[0] for line in lines[:7]] == names
    assert "does not fit" in lines[7]


def test_json_is_one_object_and_its_terms_add_up(shell: Shell, config: Path) -> None:
    done = shell.stoker("machines", "estimate", ".", "method=full", "batch=2", "--json", STOKER_GPU_FAKE="cuda:8GiB")
    told = json.loads(done.out)
    assert told["total_bytes"] == sum(term["bytes"] for term in told["terms"])
    assert told["trained_parameters"] == told["parameters"] == 1_100_048_384
    assert [one["fits"] for one in told["devices"]] == ["never"]
    assert "more than its 8.0 GiB" in told["devices"][0]["why"]


def test_a_base_that_is_quantised_on_disk_is_estimated_as_it_is(shell: Shell, config: Path) -> None:
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    double = said | {"bnb_4bit_use_double_quant": True}
    bodies = [LLAMA, *(LLAMA | {"quantization_config": one} for one in (double, said, said)), LLAMA]
    totals = []
    for body, words in zip(bodies, (["base_dtype=nf4"], [], [], ["base_dtype=nf4"], []), strict=True):
        config.write_text(json.dumps(body))
        totals.append(json.loads(shell.stoker("machines", "estimate", ".", "adapters=2", *words, "--json").out))
    four, as_saved, wide, stated, whole = (one["total_bytes"] for one in totals)
    shape = read_shape(LLAMA)
    count = shape.layers * sum(one.inputs * one.outputs for one in shape.linears)
    assert four == as_saved
    assert wide - four == nf4_bytes(count, has_wide_scales=True) - nf4_bytes(count) > 0.04 * count
    assert wide == stated < whole
    config.write_text(json.dumps(LLAMA | {"quantization_config": {"quant_method": "gptq"}}))
    done = shell.stoker("machines", "estimate", "config.json", "adapters=2")
    assert (done.code, "config.json: its weights are quantised by gptq" in done.err) == (2, True)


def test_a_machine_without_a_device_is_told(shell: Shell, config: Path) -> None:
    done = shell.stoker("machines", "estimate", "config.json", STOKER_GPU_FAKE="none")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "this machine has no device"


def test_a_model_of_the_hub_is_found_where_it_was_fetched(shell: Shell) -> None:
    commit = "0" * 40
    top = shell.folder / "hub" / "models--org--tiny"
    (top / "snapshots" / commit).mkdir(parents=True)
    (top / "refs").mkdir()
    (top / "refs" / "main").write_text(commit)
    (top / "blobs").mkdir()
    (top / "blobs" / "1234").write_text(json.dumps(LLAMA))
    os.symlink("../../blobs/1234", top / "snapshots" / commit / "config.json")
    hub = str(shell.folder / "hub")
    done = shell.stoker("machines", "estimate", "org/tiny", HF_HUB_CACHE=hub)
    assert done.code == 0, done.err
    assert shell.stoker("machines", "estimate", f"org/tiny@{commit}", HF_HUB_CACHE=hub).code == 0
    other = shell.stoker("machines", "estimate", "org/other", HF_HUB_CACHE=hub)
    assert other.code == 1
    assert "hint: stoker fetch org/other config.json" in other.err


def test_a_measured_peak_corrects_the_next_estimate_of_its_kind(shell: Shell, config: Path) -> None:
    said = ("machines", "estimate", "config.json", "checkpointing=true", "--torch", "2.11.0")
    plain = json.loads(shell.stoker(*said, "--json").out)["total_bytes"]
    noted = shell.stoker(*said, "--measured", str(round(plain * 1.05)))
    assert noted.code == 0
    assert "recorded:" in noted.err
    after = json.loads(shell.stoker(*said, "batch=2", "--json").out)
    assert after["terms"][-1]["name"] == "calibration"
    assert after["terms"][-1]["why"] == "+5.0 %, by 1 measured run of this kind"
    other = json.loads(shell.stoker("machines", "estimate", "config.json", "--torch", "2.11.0", "--json").out)
    assert other["measured_runs"] == 0


def test_a_measured_peak_of_an_unknown_torch_is_refused(shell: Shell, config: Path) -> None:
    done = shell.stoker("machines", "estimate", "config.json", "--measured", "10GiB", "--torch", "")
    assert done.code == 2
    assert "hint: name the version: --torch" in done.err
    assert not (shell.home / "state" / "vram.json").exists()


def test_all_faults_of_the_words_are_told_at_once(shell: Shell, config: Path) -> None:
    done = shell.stoker("machines", "estimate", "config.json", "method=full", "rank=8", "bach=2", "dtype=int3", "x")
    assert done.code == 28
    assert "4 errors" in done.err
    for said in (
        "bach: there is no such key (did you mean 'batch'?)",
        "dtype: 'int3'",
        "rank: ",
        "x: is no",
    ):
        assert said in done.err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", 16, "is not JSON"),
        ("[]", 2, "is not a model configuration"),
        ("{}", 2, "it has no model_type"),
        ('{"model_type": "llamma"}', 2, "did you mean 'llama'?"),
        ('{"model_type": "llama", "hidden_size": -1, "vocab_size": "x"}', 20, "vocab_size"),
        ("[" * 50_000, 16, "is not JSON"),
    ],
    ids=["broken", "a list", "empty", "misspelt", "bad fields", "deep"],
)
def test_a_bad_config_is_told_without_a_trace(shell: Shell, text: str, code: int, said: str) -> None:
    (shell.folder / "config.json").write_text(text)
    done = shell.stoker("machines", "estimate", "config.json")
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_model_that_is_nowhere_is_told_with_what_to_do(shell: Shell) -> None:
    done = shell.stoker("machines", "estimate", "./no/such/place/at all")
    assert done.code == 1
    assert "no file or folder" in done.err
    assert shell.stoker("machines", "estimate").code == 2


def test_a_damaged_book_is_a_warning(shell: Shell, config: Path) -> None:
    (shell.home / "state").mkdir(parents=True, exist_ok=True)
    (shell.home / "state" / "vram.json").write_text("{")
    done = shell.stoker("machines", "estimate", "config.json", "--json")
    assert done.code == 0
    assert "counts as empty" in done.err


def test_a_shared_process_shows_its_base_once_what_each_adapter_adds_and_how_many_fit(
    shell: Shell, config: Path
) -> None:
    asked = ("machines", "estimate", "config.json", "adapters=8", "batch=4", "sequence=512")
    done = shell.stoker(*asked, STOKER_GPU_FAKE="cuda:4GiB,cuda:80GiB")
    assert done.code == 0, done.err
    first, *lines = done.out.splitlines()
    assert first == "llama, 1,100,048,384 parameters, 12,615,680 trained by each of 8 adapters"
    names = [line.split()[0] for line in lines]
    assert names[:5] == ["base,", "weights", "loss", "context", "sum"]
    assert names[5:8] == ["each", "adapter", "activations"]
    small, hint, large = lines[-3:]
    assert ": none fits; 3.4 GiB of" in small
    assert hint.startswith("  would fit: ")
    assert ": all 8 fit at once; " in large


def test_adapters_that_only_fit_with_few_of_them_in_a_pass_fit_at_once(shell: Shell) -> None:
    asked = ("machines", "estimate", "tiny", "adapters=8", "batch=256", "sequence=128")
    done = shell.stoker(*asked, STOKER_GPU_FAKE="cuda:2GiB,cuda:8GiB")
    assert done.code == 0, done.err
    small, large = done.out.splitlines()[-2:]
    assert ": all 8 fit at once, 4 in a pass; 1.7 GiB of 1.7 GiB" in small
    assert ": all 8 fit at once; " in large
    (told,) = shell.stoker(*asked, "--json", STOKER_GPU_FAKE="cuda:2GiB,cuda:8GiB").objects()
    assert [(one["at_once"], one["in_pass"], one["would_fit"]) for one in told["devices"]] == [(8, 4, []), (8, 8, [])]
    assert 0 < told["state_bytes"] < told["member_bytes"] < told["state_bytes"] + told["pass_bytes"]


def test_a_bundled_base_is_a_model_and_a_machine_without_devices_offers_its_own_memory(shell: Shell) -> None:
    done = shell.stoker("machines", "estimate", "tiny", "adapters=2", STOKER_GPU_FAKE="none")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "this machine has no device; estimate main memory with device=cpu"


def test_a_shared_process_as_json_learns_from_what_was_measured(shell: Shell, config: Path) -> None:
    asked = ("machines", "estimate", "config.json", "adapters=4", "--torch", "2.11", "--json")
    plain = json.loads(shell.stoker(*asked, STOKER_GPU_FAKE="none").out)
    assert plain["total_bytes"] == plain["base_bytes"] + 4 * plain["member_bytes"]
    more = plain["base_bytes"] + 4 * plain["member_bytes"] * 11 // 10
    assert shell.stoker(*asked, "--measured", f"{more}B", STOKER_GPU_FAKE="none").code == 0
    told = json.loads(shell.stoker(*asked, STOKER_GPU_FAKE="none").out)
    assert told["measured_runs"] == 1
    assert told["base_bytes"] == plain["base_bytes"]
    assert told["member_bytes"] == pytest.approx(1.1 * plain["member_bytes"], rel=1e-3)
