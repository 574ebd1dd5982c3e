"""The adapters file: system B's shape, what stands at its top, and every fault with its line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.cli.check import read_declared
from stoker.config.adapters_file import AdaptersContext, AdaptersFile, read_adapters
from stoker.config.values import DeclaredLeaf, Schema
from stoker.core.errors import InvalidAdapters

SYSTEM_B = """
[[adapter]]
data = "legal.jsonl"
checkpoint = "checkpoints/legal"
label = "legal"
rank = 16
learning_rate = 2e-4
epochs = 3
max_seq_len = 512

[[adapter]]
data = "code.jsonl"
checkpoint = "checkpoints/code"
"""


def _whole(least: int) -> Any:
    def check(value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"expected a whole number, got {value!r}")
        if value < least:
            raise ValueError(f"{value} is less than {least}")
        return value

    return check


def _declared(path: str, check: Any, says: str) -> DeclaredLeaf:
    return DeclaredLeaf(path=path, read=str, check=check, says=says, default=None)


SCHEMA = Schema(
    leaves={
        **{
            name: _declared(name, str, "text") for name in ("base", "data", "checkpoints", "label", "schedule", "turns")
        },
        **{
            name: _declared(name, _whole(1), "a whole number")
            for name in ("rank", "epochs", "max_seq_len", "model.depth")
        },
        **{name: _declared(name, float, "a number") for name in ("lr", "alpha")},
        "targets": _declared("targets", tuple, "a list of text"),
    }
)


class Folder:
    def __init__(self, folder: Path) -> None:
        self.path = folder
        for name in ("legal", "code"):
            (folder / f"{name}.jsonl").write_text('{"text": "x"}\n')

    def read(self, text: str, **around: Any) -> AdaptersFile:
        (self.path / "a.toml").write_text(text)
        return read_adapters("a.toml", str(self.path / "a.toml"), AdaptersContext(schema=SCHEMA, **around))

    def faults(self, text: str, **around: Any) -> list[str]:
        with pytest.raises(InvalidAdapters) as caught:
            self.read(text, **around)
        return [str(fault).removeprefix("a.toml:") for fault in caught.value.faults]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_system_bs_file_loads_as_it_is(folder: Folder) -> None:
    legal, code = folder.read(SYSTEM_B).adapters
    assert (legal.number, legal.label) == (1, "legal")
    assert legal.data == str(folder.path / "legal.jsonl")
    assert legal.checkpoint == str(folder.path / "checkpoints/legal")
    assert legal.values == {"rank": 16, "alpha": 32.0, "lr": 2e-4, "epochs": 3, "max_seq_len": 512}
    assert (code.label, code.values) == ("code", {})


def test_what_stands_at_the_top_is_for_all_and_any_argument_may_stand_in_an_entry(folder: Folder) -> None:
    text = """
base = "org/name"
schedule = "round_robin"
rank = 8
[[adapter]]
data = "legal.jsonl"
checkpoint = "one"
schedule = "linear"
targets = ["q_proj"]
rank = 4
alpha = 4
[adapter.model]
depth = 3
"""
    file = folder.read(text)
    assert file.shared == {"base": "org/name", "turns": "round_robin", "rank": 8, "alpha": 16.0}
    values = {"schedule": "linear", "targets": ("q_proj",), "rank": 4, "alpha": 4.0, "model.depth": 3}
    assert file.adapters[0].values == values


def test_whose_turn_it_is_is_told_where_a_schedule_is_neither(folder: Folder) -> None:
    def either(value: str) -> str:
        if value not in ("cosine", "linear"):
            raise ValueError(f"{value!r} is not one of cosine, linear")
        return value

    schema = Schema(leaves={**SCHEMA.leaves, "schedule": _declared("schedule", either, "cosine|linear")})
    entry = '[[adapter]]\ndata = "code.jsonl"\ncheckpoint = "c"\n'
    hints = []
    for text in (f'schedule = "now"\n{entry}', f'{entry}schedule = "now"\n'):
        (folder.path / "a.toml").write_text(text)
        with pytest.raises(InvalidAdapters) as raised:
            read_adapters("a.toml", str(folder.path / "a.toml"), AdaptersContext(schema=schema))
        hints.append(raised.value.faults[0].hint)
    assert "order of adapters: synchronized, round_robin, priority" in hints[0]
    assert "order of adapters" not in hints[1]


def test_a_file_in_yaml_says_the_same(folder: Folder) -> None:
    (folder.path / "a.yaml").write_text("base: tiny\nadapter:\n- {data: legal.jsonl, checkpoint: c/x, rank: 2}\n")
    file = read_adapters("a.yaml", str(folder.path / "a.yaml"), AdaptersContext(schema=SCHEMA, given={}))
    assert (file.adapters[0].label, file.adapters[0].values["alpha"]) == ("x", 4.0)


def test_labels_of_those_that_have_none_tell_them_apart(folder: Folder) -> None:
    entries = [("a/run", ""), ("b/run", ""), ("c/x", ""), ("d/y", 'label = "x"\n'), ("e/compare", "")]
    text = "".join(f'[[adapter]]\ndata = "code.jsonl"\ncheckpoint = "{path}"\n{label}' for path, label in entries)
    assert [one.label for one in folder.read(text).adapters] == [
        "adapter-1",
        "adapter-2",
        "adapter-3",
        "x",
        "adapter-5",
    ]


def test_labels_that_are_made_up_are_never_somebody_elses(folder: Folder) -> None:
    one = '[[adapter]]\ndata = "code.jsonl"\ncheckpoint = "{}/same"\n'
    text = "".join(one.format(number) for number in range(1002)) + 'label = "adapter-1"\n'
    labels = [entry.label for entry in folder.read(text).adapters]
    assert len(set(labels)) == len(labels) == 1002


def test_two_names_of_one_folder_are_one_folder(folder: Folder) -> None:
    (folder.path / "real").mkdir()
    (folder.path / "other").symlink_to("real")
    text = "".join(f'[[adapter]]\ndata = "code.jsonl"\ncheckpoint = "{one}/x"\n' for one in ("real", "other"))
    (fault,) = folder.faults(text)
    assert "the folder 'other/x' is used by another adapter, too" in fault


def test_a_folder_inside_of_another_adapters_is_refused_beside_all_other_faults(folder: Folder) -> None:
    text = "".join(
        f'[[adapter]]\ndata = "legal.jsonl"\ncheckpoint = "{one}"\n' for one in ("c/a", "c/a/best", "c/b", "c/ab")
    )
    first, second = folder.faults(text + "[[adapter]]\n")[:2]
    assert "6:14: adapter[1].checkpoint: the folder 'c/a/best' is inside another adapter's, 'c/a'" in first
    assert "the other is on line 3" in first
    assert "adapter[4]" in second


def test_every_fault_is_told_at_once_with_line_and_key(folder: Folder) -> None:
    text = """epoch = 3
[[adapter]]
data = "nowhere.jsonl"
checkpoint = "one"
label = "a/b"
[[adapter]]
checkpoint = "./one"
rank = 0
lern_rate = 1
[[adapter]]
data = "legal.jsonl"
checkpoint = "legal.jsonl"
rank = "8"
base = "x"
[[adapter]]
data = "legal.jsonl"
checkpoint = "two"
label = "x"
lr = 1
learning_rate = 2
[[adapter]]
data = "code.jsonl"
checkpoint = "a/../two"
label = "x"
"""
    faults = folder.faults(text, given={})
    told = {fault.split(": ")[1] if fault.count(": ") > 1 else "": fault for fault in faults}
    assert [int(fault.partition(":")[0]) for fault in faults] == sorted(int(one.partition(":")[0]) for one in faults)
    assert "did you mean 'epochs'" in told["epoch"]
    assert "base is missing" in told["base"]
    assert told["adapter[0].data"].startswith("3:8: adapter[0].data: there is no file 'nowhere.jsonl'")
    assert "'a/b' is not a label" in told["adapter[0].label"]
    assert any("adapter[1]: data is missing" in fault for fault in faults)
    assert told["adapter[1].rank"].startswith("8:8: adapter[1].rank: 0 is less than 1")
    assert "learning_rate" in told["adapter[1].lern_rate"]
    assert "is a file" in told["adapter[2].checkpoint"]
    assert "expected a whole number" in told["adapter[2].rank"]
    assert "same for all adapters" in told["adapter[2].base"]
    assert "learning_rate and lr are the same argument" in told["adapter[3].learning_rate"]
    assert told["adapter[4].label"].endswith("(first on line 18)")
    assert "used by another adapter, too" in told["adapter[4].checkpoint"]


@pytest.mark.parametrize("text", ["adapter = []\n", "base = 'x'\n", "[[adapters]]\ndata = 'x'\n"])
def test_a_file_without_adapters_is_refused(folder: Folder, text: str) -> None:
    assert any("at least one adapter" in fault for fault in folder.faults(text, given={"base": "tiny"}))


@pytest.mark.parametrize("data", [None, ("sums",)])
def test_what_no_file_can_be_called_is_refused(folder: Folder, data: tuple[str, ...] | None) -> None:
    text = '[[adapter]]\ndata = "su\\u0000ms"\ncheckpoint = "a\\u0000b"\n'
    faults = folder.faults(text, given={"base": "tiny"}, data=data)
    assert [fault.rpartition("(")[2] for fault in faults] == ["not a valid file name)"] * 2


def test_names_of_bundled_data_are_no_files(folder: Folder) -> None:
    file = folder.read('[[adapter]]\ndata = "sums"\ncheckpoint = "c"\n', data=("sums",))
    assert file.adapters[0].data == "sums"


def test_a_file_is_known_by_its_list(folder: Folder) -> None:
    path = folder.path / "x.toml"
    path.write_text(SYSTEM_B)
    assert isinstance(read_declared("x.toml", str(path)), AdaptersFile)
    path.write_text("[[adapter]]\ndata = [\n")
    with pytest.raises(InvalidAdapters):
        read_declared("x.toml", str(path))
