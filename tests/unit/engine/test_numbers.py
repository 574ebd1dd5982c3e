"""A whole number means one thing: one table, over every place where a schema reads one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.config.cluster_file import read_cluster
from stoker.config.manifest_file import read_manifest
from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import SweepSample
from stoker.config.sweep_file import SweepPlace, read_sweep
from stoker.coordinator.queue.machines import limits_of
from stoker.core.capability import capability_from_dict
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import ReadRules, from_plain
from stoker.core.text import whole_number
from stoker.engine.arg_types import arg_type_of
from stoker.engine.runners.program.trainer_lines import Eval, parse_control
from stoker.protocol.codec import StrictRequest, WireMessage, from_json

# How the value is written in JSON and YAML, and the whole number that it is; None: it is refused.
TABLE = [
    ("1", 1),
    ("7", 7),
    ("1.0", 1),
    ("1e3", 1000),
    ("1.0e+3", 1000),
    ("1.5", None),
    ('"1"', None),
    ('"1.0"', None),
    ("true", None),
    ("false", None),
    ("[1]", None),
    ("{}", None),
    ("9007199254740994.0", None),
    ("1e300", None),
]


@frozen
class Counted:
    count: int


class CountedMessage(WireMessage):
    count: int


class CountedRequest(StrictRequest):
    count: int


def in_a_cluster_file(text: str, folder: Path) -> object:
    (folder / "c.yaml").write_text(f"nodes:\n- {{name: n, host: h, cpu_cores: {text}}}\n")
    return read_cluster("c.yaml", str(folder / "c.yaml")).nodes[0].cpu_cores


def in_a_manifest(text: str, folder: Path) -> object:
    (folder / "m.yaml").write_text(f"jobs:\n- {{name: n, command: x, min_cores: {text}}}\n")
    return read_manifest("m.yaml", str(folder / "m.yaml")).jobs[0].min_cores


def in_a_toml_manifest(text: str, folder: Path) -> object:
    (folder / "m.toml").write_text(f'[[jobs]]\nname = "n"\ncommand = "x"\nmin_cores = {text}\n')
    return read_manifest("m.toml", str(folder / "m.toml")).jobs[0].min_cores


def in_a_sweep(text: str, _folder: Path) -> object:
    sweep, faults = read_sweep({"a": [1, 2], "sample": {"n": json.loads(text), "seed": 0}}, _nowhere)
    if faults:
        raise ValueError(str(faults[0]))
    assert isinstance(sweep, SweepSample)
    return sweep.count


def _nowhere(_place: SweepPlace) -> ValueOrigin:
    return ValueOrigin(ConfigLayer.FILE, "s.yaml")


def in_an_argument(text: str, _folder: Path) -> object:
    return arg_type_of(int).check(json.loads(text))


def in_a_capability(text: str, _folder: Path) -> object:
    return capability_from_dict({"cpu_cores": json.loads(text)}).cpu_cores


def in_a_frozen_object(text: str, _folder: Path) -> object:
    return from_plain(Counted, {"count": json.loads(text)}, "it", ReadRules(bounds={})).count


def in_limits_of_a_worker(text: str, _folder: Path) -> object:
    return limits_of({"cores": json.loads(text)}).cores


def in_a_message(text: str, _folder: Path) -> object:
    return from_json(CountedMessage, f'{{"count": {text}}}'.encode()).count


def in_a_tagged_message(text: str, _folder: Path) -> object:
    return from_json(CountedMessage, f'{{"count": {text}, "other": {{"$float": "nan"}}}}'.encode()).count


def in_a_request(text: str, _folder: Path) -> object:
    return from_json(CountedRequest, f'{{"count": {text}}}'.encode()).count


def in_a_line_of_a_trainer(text: str, _folder: Path) -> object:
    read = parse_control(f'{{"kind": "eval", "step": {text}, "metrics": {{}}}}'.encode())
    if not isinstance(read, Eval):
        raise TypeError(str(read))
    return read.step


ENTRANCES: list[Callable[[str, Path], object]] = [
    in_a_cluster_file,
    in_a_manifest,
    in_a_toml_manifest,
    in_a_sweep,
    in_an_argument,
    in_a_capability,
    in_a_frozen_object,
    in_limits_of_a_worker,
    in_a_message,
    in_a_tagged_message,
    in_a_request,
    in_a_line_of_a_trainer,
]


@pytest.mark.parametrize("read", ENTRANCES, ids=lambda read: read.__name__)
def test_a_whole_number_means_the_same_everywhere(read: Callable[[str, Path], object], tmp_path: Path) -> None:
    for written, expected in TABLE:
        text = "1.0e3" if read is in_a_toml_manifest and written == "1.0e+3" else written
        try:
            found = read(text, tmp_path)
        # Each entrance has its own error, and all of them are refusals of input.
        except (ValueError, TypeError, StokerError):
            assert expected is None, text
        else:
            assert found == expected, text
            assert type(found) is int, text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, b"1"])
def test_what_no_text_writes_is_no_whole_number(value: Any) -> None:
    assert whole_number(value) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1.0", 1), ("1e3", 1000), ("007", 7), ("1.5", None), ("true", None), ("nan", None)],
)
def test_text_that_a_person_typed_is_read_by_the_declared_type(text: str, expected: int | None) -> None:
    whole = arg_type_of(int)
    if expected is None:
        with pytest.raises(ValueError, match="whole number"):
            whole.read(text)
    else:
        assert whole.read(text) == expected
