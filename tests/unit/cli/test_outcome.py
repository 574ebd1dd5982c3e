from __future__ import annotations

from stoker.cli.run_report import filled_in


def test_a_proposed_command_names_the_files_that_the_run_was_given() -> None:
    step = "stoker run language/lora rank=8,16 base=PATH/mine data=FILE.jsonl"
    args = {"base": "bases/mine", "data": "my data.jsonl", "rank": 8}
    assert filled_in(step, args) == "stoker run language/lora rank=8,16 base=bases/mine data='my data.jsonl'"
    assert filled_in(step, {"base": "", "data": None}) == step
    assert filled_in("stoker run x data=FILES/a.csv", {"data": "b"}) == "stoker run x data=FILES/a.csv"
