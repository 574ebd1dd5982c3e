from __future__ import annotations

import shlex
from typing import Any

from stoker.cli.run_report import filled_in
from stoker.cookbooks.language.recipes import lora
from stoker.jobs.request import JobRequest, compose_request

STEP = "stoker run language/lora rank=8,16 base=PATH/mine data=FILE.jsonl"


def test_a_proposed_command_names_the_files_that_the_run_was_given() -> None:
    args = {"base": "bases/mine", "data": "my data.jsonl", "rank": 8}
    filled = filled_in(STEP, args, lora.args, is_same=True)
    assert filled == "stoker run language/lora rank=8,16 base=bases/mine data='my data.jsonl'"
    assert filled_in(STEP, {"base": "", "data": None}, lora.args, is_same=True) == STEP
    assert (
        filled_in("stoker run x data=FILES/a.csv", {"data": "b"}, lora.args, is_same=True)
        == "stoker run x data=FILES/a.csv"
    )


def proposed(**given: Any) -> dict[str, Any]:
    """The arguments that a proposed command sets, as a run reads them."""
    args, faults = lora.args.check({"data": "a.csv", **given}, owner="lora")
    assert not faults
    words = [
        word for word in shlex.split(filled_in(STEP, args, lora.args, is_same=True))[3:] if not word.startswith("rank=")
    ]
    composed, _ = compose_request(
        JobRequest(overrides=tuple(words)), schema=lora.args.declared(), environment={}, folder=".", owner="lora"
    )
    assert composed.sweep is None
    return {name: composed.values[name] for name in (word.partition("=")[0] for word in words) if name != "base"}


def test_a_proposed_command_learns_the_same_examples() -> None:
    sources = ["sums", {"path": "a b.csv", "weight": 0.5, "columns": {"prompt": "asked, twice", "completion": "b"}}]
    given = {
        "columns": {"prompt": "the question", "completion": "it's"},
        "split": "train[1]",
        "subset": "de",
        "eval_split": "test",
        "max_seq_len": 64,
        "train_on": "all",
        "holdout_percent": 10.0,
    }
    assert proposed(**given) == {"data": "a.csv", **given}
    assert proposed(data="it's {odd}, [a].csv")["data"] == "it's {odd}, [a].csv"
    bundled, listed = proposed(data=sources)["data"]
    assert (bundled, {name: listed[name] for name in ("path", "weight", "columns")}) == ("sums", sources[1])
    assert "split" not in filled_in(STEP, lora.args.check({"data": sources}, owner="")[0], lora.args, is_same=True)
    assert proposed() == {"data": "a.csv"}
    how = {"dora": True, "targets": ("q_proj", "*.mlp.*"), "modules_to_save": ("lm_head",), "epochs": 5}
    assert proposed(**how, gpus=1) == {"data": "a.csv", **how}
    args, _ = lora.args.check({"data": "a.csv", "columns": {"prompt": "q"}, **how}, owner="lora")
    other = shlex.split(filled_in(STEP, args, lora.args, is_same=False))
    assert [word for word in other if word.startswith(("columns", "dora", "epochs"))] == ["columns={prompt:q}"]
    assert proposed(method="dpo") == {"data": "a.csv", "method": "dpo"}
