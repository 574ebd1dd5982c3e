"""Traces on disk, and what their comparison says of two models whose difference is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import StageInputError
from stoker.core.frozen import changed
from stoker.crossval.ladder import Outcome, Parity
from stoker.crossval.parity import compare_traces
from stoker.crossval.trace import Trace, TraceHeader, TraceWriter, decode_from

np = pytest.importorskip("numpy")

IDS = tuple(range(12))
WIDTH, VOCAB, LAYERS = 8, 20, 3
SHOWN = ("embd", "l_out-0", "l_out-1", "l_out-2")


class Model:
    """Three layers of one matrix each, and a head: what a layer does is known exactly."""

    def __init__(self, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.embedding = random.normal(size=(len(IDS), WIDTH))
        self.weights = [np.eye(WIDTH) + random.normal(size=(WIDTH, WIDTH)) / 4 for _ in range(LAYERS)]
        self.head = random.normal(size=(WIDTH, VOCAB))

    def layer(self, number: int, values: Any) -> Any:
        return values @ (self.head if number == LAYERS else self.weights[number])

    def trace(self, folder: Path, shown: Sequence[str] = SHOWN, **changes: Any) -> Trace:
        """Write its trace, with these outputs in this order."""
        folder.mkdir()
        states = [self.embedding]
        for number in range(LAYERS):
            states.append(self.layer(number, states[-1]))
        logits = self.layer(LAYERS, states[-1]).astype("<f4")
        with TraceWriter(str(folder)) as writer:
            for pos in range(len(IDS)):
                writer.append("logits.f32", logits[pos].tobytes())
                for name in shown:
                    state = states[SHOWN.index(name)]
                    writer.put_layer(name, pos, len(IDS), state[pos].astype("<f4").tobytes())
            for pos in range(decode_from(len(IDS)), len(IDS)):
                writer.append("decode.f32", logits[pos].tobytes())
            writer.finish(header(layers=writer.layers, width=writer.width, **changes))
        return Trace(str(folder))


def header(**changes: Any) -> TraceHeader:
    values: dict[str, Any] = {
        "runtime": "fake",
        "version": "1",
        "model": "m.gguf",
        "sha256": "0" * 64,
        "ids": IDS,
        "texts": ("a",),
        "tokens": ((1, 2),),
        "n_vocab": VOCAB,
        "n_layers": LAYERS,
        "ran": {"weights": "F32", "kv": "F32"},
        "tensors": 5,
        "used": 5,
        "has_decode": True,
    }
    return TraceHeader(**{**values, **changes})


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Parity]:
    def compare(change: Callable[[Model], None], limits: dict[str, float] | None = None, **changes: Any) -> Parity:
        reference, candidate = Model(), Model()
        change(candidate)
        sides = candidate.trace(tmp_path / "c", **changes), reference.trace(tmp_path / "r")
        # A trace has floats of 32 bits, the replay works with 64.
        return compare_traces(*sides, replay=reference.layer, changes={"head": 1e-10, "layer": 1e-9, **(limits or {})})

    return compare


def test_a_trace_is_read_as_it_was_written(tmp_path: Path):
    model = Model()
    trace = model.trace(tmp_path / "t")
    assert np.allclose(trace.layer(0), model.embedding)
    assert np.allclose(trace.layer(2), model.layer(1, model.layer(0, model.embedding)), atol=1e-5)
    assert [pos for pos, _ in trace.decoded()] == list(range(6, 12))
    assert len(list(trace.logits())) == len(IDS)


@pytest.mark.parametrize(
    "change",
    [{"n_vocab": "x"}, {"n_vocab": -1}, {"width": None}, {"ids": 7}, {"layers": 3}, {"tokens": [[None]]}, {"v": 9}],
)
def test_a_header_of_another_machine_is_not_believed(tmp_path: Path, change: dict[str, Any]):
    path = Path(Model().trace(tmp_path / "t").folder, "trace.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StageInputError):
        Trace(str(path.parent))


@pytest.mark.parametrize("name", ["trace.json", "logits.f32", "layers.f32", "decode.f32"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_an_incomplete_trace_is_refused(tmp_path: Path, name: str, how: str):
    trace = Model().trace(tmp_path / "t")
    path = Path(trace.folder, name)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if name != "trace.json" else b"{")
    with pytest.raises(StageInputError):
        Trace(trace.folder)


def test_equal_models_pass_every_step(compared: Callable[..., Parity]):
    parity = compared(lambda _: None)
    assert parity.outcome is Outcome.PASSED, parity.reason
    assert [step.outcome for step in parity.steps] == [Outcome.PASSED] * 6


def test_another_token_is_located_in_the_input_of_the_first_layer(compared: Callable[..., Parity]):
    def change(model: Model) -> None:
        model.embedding[5] = model.embedding[4]

    parity = compared(change)
    assert parity.first is not None
    assert (parity.first.step, parity.first.pos) == ("embedding", 5)
    assert {step.name: step.outcome for step in parity.steps}["layers"] is Outcome.PASSED


def test_sides_that_used_their_own_tokenizers_are_compared_as_far_as_these_agree(compared: Callable[..., Parity]):
    own = {"tokens": ((1, 3),), "ids": tuple(range(1, 13))}
    parity = compared(lambda _: None, **own)
    assert parity.first is not None
    assert parity.first.step == "tokens"
    assert {step.outcome for step in parity.steps if step.name != "tokens"} == {Outcome.SKIPPED}


def test_traces_of_other_token_ids_are_refused(compared: Callable[..., Parity]):
    with pytest.raises(StageInputError, match="different token ids"):
        compared(lambda _: None, ids=tuple(range(1, 13)))


def test_a_changed_weight_is_located_in_its_layer_and_later_layers_stay_clean(compared: Callable[..., Parity]):
    def change(model: Model) -> None:
        model.weights[1][2, 3] += 0.01

    parity = compared(change)
    assert parity.first is not None
    assert (parity.first.step, parity.first.layer, parity.first.pos) == ("layers", 1, 0)
    layers = next(step for step in parity.steps if step.name == "layers")
    assert [row.error > 1e-9 for row in layers.layers] == [False, True, False]


def test_a_changed_head_is_located_there(compared: Callable[..., Parity]):
    def change(model: Model) -> None:
        model.head *= 1.05

    parity = compared(change)
    assert parity.first is not None
    assert parity.first.step == "head"


def test_limits_of_a_quantised_side_are_wider(compared: Callable[..., Parity]):
    def change(model: Model) -> None:
        model.head *= 1 + 1e-4

    assert compared(change, {"head": 1.0}, ran={"weights": "Q8_0", "kv": "F16"}).outcome is Outcome.PASSED


def test_tokenizers_that_disagree_fail_before_the_logits(compared: Callable[..., Parity]):
    parity = compared(lambda _: None, tokens=((1, 3),))
    assert parity.first is not None
    assert parity.first.step == "tokens"


def test_traces_of_different_questions_are_not_compared(tmp_path: Path):
    ours, theirs = Model().trace(tmp_path / "a"), Model().trace(tmp_path / "b", texts=("another",))
    with pytest.raises(StageInputError):
        compare_traces(ours, theirs)


def test_without_replay_the_layers_that_both_show_are_compared_and_the_head_is_skipped(tmp_path: Path):
    ours, theirs = Model(), Model()
    parity = compare_traces(ours.trace(tmp_path / "a"), theirs.trace(tmp_path / "b"))
    assert parity.outcome is Outcome.PASSED
    assert [step.name for step in parity.steps if step.outcome is Outcome.SKIPPED] == ["head"]
    ours.weights[1][2, 3] += 0.01
    parity = compare_traces(ours.trace(tmp_path / "c"), Trace(str(tmp_path / "b")))
    assert parity.first is not None
    assert (parity.first.step, parity.first.layer) == ("layers", 1)
    assert "with equal input" not in parity.first.text
    layers = next(step for step in parity.steps if step.name == "layers").layers
    assert [row.error > 1e-9 for row in layers] == [False, True, True]


@pytest.mark.parametrize(
    ("shown", "compared", "reason", "has_head"),
    [
        # As ONNX Runtime shows them: without the input of the first layer.
        (SHOWN[1:], [1, 2], "layer 0 not compared: fake shows l_out-0, l_out-1, l_out-2", True),
        (("l_out-2", "embd", "l_out-0"), [0], "layers 1, 2 not compared: fake shows l_out-2, embd, l_out-0", True),
        (SHOWN[:2], [0], "layers 1, 2 not compared: fake shows embd, l_out-0", False),
        (SHOWN[1:2], [], "layers 0, 1, 2 not compared: fake shows l_out-0", False),
        ((), [], "fake shows no layers", False),
    ],
)
def test_layers_are_replayed_by_their_names(
    tmp_path: Path, shown: tuple[str, ...], compared: list[int], reason: str, has_head: bool
):
    model, reference = Model(), Model().trace(tmp_path / "r")
    limits = {"head": 1e-10, "layer": 1e-9}
    parity = compare_traces(model.trace(tmp_path / "c", shown), reference, replay=model.layer, changes=limits)
    assert parity.outcome is Outcome.PASSED, parity.first
    steps = {step.name: step for step in parity.steps}
    assert [row.layer for row in steps["layers"].layers] == compared
    assert steps["layers"].reason == reason
    assert (steps["head"].outcome is Outcome.PASSED) == has_head


def test_a_fault_is_located_although_the_first_layer_is_not_shown(tmp_path: Path):
    ours, theirs = Model(), Model()
    ours.weights[1][2, 3] += 0.01
    sides = ours.trace(tmp_path / "a", SHOWN[1:]), theirs.trace(tmp_path / "b")
    parity = compare_traces(*sides, replay=theirs.layer, changes={"head": 1e-10, "layer": 1e-9})
    assert parity.first is not None
    assert (parity.first.step, parity.first.layer) == ("layers", 1)
    parity = compare_traces(*sides)
    assert parity.first is not None
    assert (parity.first.step, parity.first.layer) == ("layers", 1)
    layers = next(step for step in parity.steps if step.name == "layers")
    assert [(row.layer, row.name, row.error > 1e-9) for row in layers.layers] == [
        (0, "l_out-0", False), (1, "l_out-1", True), (2, "l_out-2", True),
    ]  # fmt: skip


def test_layers_of_models_of_other_sizes_are_not_replayed(tmp_path: Path):
    reference = Model().trace(tmp_path / "r", n_layers=LAYERS - 1)
    parity = compare_traces(Model().trace(tmp_path / "c"), reference, replay=Model().layer, changes={"layer": 1e-9})
    steps = {step.name: step for step in parity.steps}
    assert [row.layer for row in steps["layers"].layers] == [0, 1]
    assert steps["head"].outcome is Outcome.SKIPPED
    reference.header = changed(reference.header, n_layers=LAYERS, width=WIDTH + 1)
    parity = compare_traces(Trace(str(tmp_path / "c")), reference, replay=Model().layer)
    assert {step.name for step in parity.steps if step.outcome is Outcome.SKIPPED} == {"layers", "head"}
