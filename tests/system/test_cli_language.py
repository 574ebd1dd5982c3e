"""Adapters as a user trains them: one line in, a report and an adapter that PEFT loads out, and nothing twice."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import bundled_base
from stoker.core import jsontext
from tests.servers.hub import FakeHub, Served
from tests.system.fetching import fetching_shell
from tests.system.shell import Done, Shell

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

QUICK = ("steps=3", "batch=4", "threads=1")
# Several processes of a training begin by importing torch.
_LONGEST_S = 180.0


def trained(shell: Shell, *words: str) -> Done:
    with shell.start("run", *words) as process:
        try:
            out, err = process.communicate(timeout=_LONGEST_S)
        finally:
            process.kill()
    return Done(code=process.returncode, out=out, err=err)


@pytest.mark.slow
def test_a_sweep_over_one_base_is_trained_together_and_then_known(shell: Shell) -> None:
    words = ("language/lora", "base=tiny", "data=sums", "rank=4,8", "lr=1e-3,3e-3", *QUICK)
    done = trained(shell, *words)
    assert done.code == 0, done.err
    assert "4 ok. Best rank=" in done.out
    logs = [path.read_text() for path in (shell.home / "runs").rglob("*train_lora*.log")]
    joined = {line.split()[-1] for text in logs for line in text.splitlines() if "joined shared process" in line}
    assert len(joined) == 1, logs
    for label in ("rank=4,lr=0.001", "rank=8,lr=0.003"):
        folder = shell.folder / "stoker-out/lora" / label
        rank = jsontext.loads((folder / "adapter_config.json").read_text())["r"]
        assert label.startswith(f"rank={rank},")
        assert (folder / "summary.json").is_file()
    again = trained(shell, *words)
    assert again.code == 0, again.err
    assert "4 ok (4 kept). Best rank=" in again.out


def test_everything_that_is_wrong_is_told_at_once_and_nothing_runs(shell: Shell) -> None:
    done = shell.stoker("run", "language/lora", "rank=64", "targets=[q_prj]", "data=gone.jsonl")
    assert done.code == 28, done.err
    for part in ("file not found: gone.jsonl", "did you mean 'q_proj'?"):
        assert part in done.err
    assert not (shell.folder / "stoker-out").exists()


def test_a_file_has_every_argument_and_its_faults_have_lines_and_keys(shell: Shell) -> None:
    spec = """data:
- path: gone.jsonl
  weight: 2
- sums
rank: {rank}
targets: [q_proj, v_prj]
sweep:
  lr: [1e-3, 2e-3]
"""
    path = shell.folder / "spec.yaml"
    path.write_text(spec.replace("{rank}", "200"))
    run = ("run", "language/lora", "--config", "spec.yaml", "--dry-run")
    done = shell.stoker(*run)
    assert done.code == 28, done.err
    for line in (
        "spec.yaml:2:3: data.0: file not found: gone.jsonl",
        "spec.yaml:5:7: rank: 200 is larger than",
        "spec.yaml:6:10: targets: no matrix 'v_prj'",
    ):
        assert line in done.err
    path.write_text(spec.replace("weight: 2", "weigth: 2").replace("rank: {rank}", "rnk: few\ndropout: 7"))
    done = shell.stoker(*run)
    assert done.code == 21, done.err
    for line in (
        "spec.yaml:3:11: data.0.weigth: unknown argument (did you mean 'weight'?)",
        "spec.yaml:5:1: rnk: there is no such key (did you mean 'rank'?)",
        "spec.yaml:6:10: dropout: must be less than 1",
    ):
        assert line in done.err
    path.write_text("data: [sums, {path: lines, weight: 0.5}]\nsweep: {rank: [4, 8]}\n")
    assert shell.stoker(*run).code == 0
    twice = shell.stoker("run", "language/lora", "data=sums", "data=lines", "--dry-run")
    assert "for all of them: 'data=[sums,lines]'" in twice.out + twice.err
    schema = jsontext.loads(shell.stoker("recipes", "show", "language/lora", "--schema").out)
    assert {"data", "rank", "sweep", "defaults"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_a_dry_run_ends_with_the_code_of_what_a_run_would_surely_refuse(shell: Shell) -> None:
    (shell.folder / "bad.jsonl").write_text('{"text": "fine"}\n{"text":\n{}\n')
    done = shell.stoker("run", "language/lora", "data=bad.jsonl", "--dry-run")
    assert done.code == 41, done.err
    assert "1 would run" in done.out
    for line in (
        "tokenise: 2 invalid lines in bad.jsonl:",
        "bad.jsonl:2: invalid JSON",
        "bad.jsonl:3: it has no keys",
    ):
        assert line in done.err
    done = shell.stoker("run", "language/lora", "gpus=1", "--dry-run", "--json", STOKER_GPU_FAKE="none")
    assert (done.code, done.objects()[-1]["error"]) == (40, "plan_faults")
    assert "train_lora: needs 1 GPU, this machine offers 0\nhint: gpus=0 runs on the CPU" in done.err


def test_a_base_of_the_hub_is_fetched_once_small_files_first_and_verified(tmp_path: Path) -> None:
    weights = {one.name: one.read_bytes() for one in bundled_base("tiny").iterdir()}
    files: dict[str, bytes | Served] = {
        **weights,
        "model.safetensors": Served(weights["model.safetensors"], is_large=True),
    }
    run = ("run", "language/lora", "base=org/name", "gpus=1")
    with FakeHub() as hub:
        shell = fetching_shell(tmp_path, hub.endpoint)
        shell.env["STOKER_GPU_FAKE"] = "none"
        hub.repository("org/name").commit({**files, "pytorch_model.bin": Served(b"x" * 1000, is_large=True)})
        hub.repository("org/odd").commit({**files, "config.json": weights["config.json"].replace(b'"llama"', b'"odd"')})
        dry = shell.stoker(*run, "--dry-run")
        assert (dry.code, "base org/name would be downloaded from 127.0.0.1:" in dry.out) == (0, True)
        assert not Path(shell.env["HF_HOME"]).exists()
        away = shell.stoker(*run, HF_HUB_OFFLINE="1")
        assert (away.code, "nor in the hub's cache (stoker fetch org/name)" in away.err) == (28, True)
        absent = shell.stoker("run", "language/lora", "base=org/absent")
        assert (absent.code, "base=org/absent is not a local folder, and the download failed: " in absent.err) == (
            11,
            True,
        )
        odd = shell.stoker("run", "language/lora", "base=org/odd")
        assert (odd.code, "its architecture 'odd' is not supported" in odd.err) == (28, True)
        assert not hub.asked_for("model.safetensors")
        # It comes before this machine is asked for what it has not.
        done = shell.stoker(*run)
        assert done.code == 40, done.err
        assert "downloaded from 127.0.0.1:" in done.out
        assert not hub.asked_for("pytorch_model.bin")
        hub.asked.clear()
        assert "downloaded" not in shell.stoker(*run).out
        assert "base org/name, 423.3 KiB, sha256 ✓" in shell.stoker(*run[:3], "--dry-run").out
        assert not hub.asked
        (blob,) = Path(shell.env["HF_HOME"]).glob("hub/models--org--name/snapshots/*/model.safetensors")
        real = blob.resolve()
        real.chmod(0o644)
        real.write_bytes(weights["model.safetensors"][:-4] + b"torn")
        healed = shell.stoker(*run)
        assert "model.safetensors was damaged in the cache" in healed.err
        assert blob.read_bytes() == weights["model.safetensors"]


def test_a_data_set_of_the_hub_is_fetched_by_its_split_and_verified(tmp_path: Path) -> None:
    lines = {name: f'{{"text": "{name}"}}\n'.encode() * 3 for name in ("train", "validation", "other")}
    card = b"---\nconfigs:\n- config_name: default\n  data_files:\n"
    card += b"".join(f"  - split: {name}\n    path: data/{name}.jsonl\n".encode() for name in lines) + b"---\n# A set\n"
    data = {f"data/{name}.jsonl": Served(text, is_large=True) for name, text in lines.items()}
    run = ("run", "language/lora", "data=org/texts", "gpus=1")
    with FakeHub() as hub:
        shell = fetching_shell(tmp_path, hub.endpoint)
        shell.env["STOKER_GPU_FAKE"] = "none"
        hub.repository("datasets/org/texts").commit({"README.md": card, **data})
        hub.repository("datasets/org/bare").commit({"train-00000-of-00001.csv": b"text\nhello\nyou\n"})
        dry = shell.stoker(*run, "--dry-run")
        assert (dry.code, "data datasets/org/texts would be downloaded from 127.0.0.1:" in dry.out) == (0, True), (
            dry.err
        )
        away = shell.stoker(*run, HF_HUB_OFFLINE="1")
        assert (away.code, "nor in the hub's cache (stoker fetch datasets/org/texts)" in away.err) == (28, True)
        typo = shell.stoker(*run, "split=trian")
        assert (typo.code, "there is no split 'trian' (did you mean 'train'?)" in typo.err) == (28, True), typo.err
        assert not hub.asked_for("data/train.jsonl")
        # It comes before this machine is asked for what it has not.
        done = shell.stoker(*run, "eval_split=validation")
        assert done.code == 40, done.err
        assert "data datasets/org/texts" in done.out
        assert not hub.asked_for("data/other.jsonl")
        (blob,) = Path(shell.env["HF_HOME"]).glob("hub/datasets--org--texts/snapshots/*/data/train.jsonl")
        blob.resolve().chmod(0o644)
        blob.resolve().write_bytes(lines["train"][:-4] + b"torn")
        assert "train.jsonl was damaged in the cache" in shell.stoker(*run).err
        assert blob.read_bytes() == lines["train"]
        assert shell.stoker(*run[:2], "data=org/bare", *run[3:]).code == 40
        for name in ("org/../../etc", "../../etc/passwd", "a--b/c"):
            outside = shell.stoker(*run[:2], f"data={name}", *run[3:])
            assert (outside.code, "data: file not found" in outside.err) == (28, True), outside.err


def test_an_adapter_of_a_file_learns_a_data_set_of_the_hub(tmp_path: Path) -> None:
    with FakeHub() as hub:
        shell = fetching_shell(tmp_path, hub.endpoint)
        shell.env["STOKER_GPU_FAKE"] = "none"
        hub.repository("datasets/org/texts").commit({"train.csv": b"text\nhello\nyou\n"})
        adapter = '[[adapter]]\ndata = {}\ncheckpoint = "{}"\n'
        text = 'base = "tiny"\n' + adapter.format('"org/texts"', "one")
        (shell.folder / "a.toml").write_text(text + adapter.format('["org/texts", "sums"]', "both"))
        assert shell.stoker("check", "a.toml").code == 0
        away = shell.stoker("adapters", "run", "a.toml", HF_HUB_OFFLINE="1")
        assert (away.code, away.err.count("nor in the hub's cache (stoker fetch datasets/org/texts)")) == (25, 2)
        dry = shell.stoker("adapters", "run", "a.toml", "--dry-run")
        assert (dry.code, "data datasets/org/texts would be downloaded" in dry.out) == (0, True), dry.err
        # It comes before this machine is asked for what it has not.
        done = shell.stoker("adapters", "run", "a.toml", "gpus=1")
        assert (done.code, "data datasets/org/texts" in done.out) == (40, True), done.err
        assert list(Path(shell.env["HF_HOME"]).glob("hub/datasets--org--texts/snapshots/*/train.csv"))
        assert shell.stoker("adapters", "board", "a.toml").code == 0


def test_a_training_that_no_gpu_here_has_room_for_is_refused_with_what_would_fit(shell: Shell) -> None:
    words = ("run", "language/lora", "batch=64", "max_seq_len=2048", "--dry-run")
    done = shell.stoker(*words, STOKER_GPU_FAKE="cuda:1x1GiB")
    assert done.code == 28, done.out
    assert "one adapter takes " in done.err
    assert "would fit: batch=" in done.err
    assert shell.stoker(*words).code == 0


@pytest.mark.slow
def test_one_line_gives_a_report_with_samples_and_an_adapter_that_peft_loads_and_merge_takes(shell: Shell) -> None:
    import torch

    peft = pytest.importorskip("peft")
    words = ("language/lora", "rank=8", "lr=3e-3", "samples=[1+2=]", "sample_tokens=4", *QUICK)
    done = trained(shell, *words)
    assert done.code == 0, done.err
    assert "adapter of rank 8 on tiny: perplexity " in done.out
    folder = shell.folder / "stoker-out/lora"
    assert "1+2=" in (folder / "samples.md").read_text()
    merged = trained(shell, "language/merge", "base=tiny", f"adapter={folder}")
    assert merged.code == 0, merged.err
    tokens = torch.tensor([[49, 43, 50, 61]])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beside = peft.PeftModel.from_pretrained(_model(bundled_base("tiny")), folder)(tokens).logits
        inside = _model(shell.folder / "stoker-out/merge")(tokens).logits
    assert torch.allclose(beside, inside, atol=1e-5)


@pytest.mark.slow
def test_every_weight_is_trained_and_the_model_lies_beside_its_report(shell: Shell) -> None:
    done = trained(shell, "language/full", "lr=1e-3", *QUICK)
    assert done.code == 0, done.err
    assert "tiny, every weight trained: perplexity " in done.out
    folder = shell.folder / "stoker-out/full"
    assert (folder / "model-card.md").is_file()
    assert _model(folder / "train_full").config.model_type == "llama"


def _model(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder)
