"""Models as subjects of benchmarks and gates, through a plug-in that is a few lines of Python."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import LocalFile, NotVerified, PluginFailed, Usage
from stoker.crossval.gate_run import GatePlace, GateRequest, run_gate
from stoker.crossval.gate_sides import GateSide, ModelSide, ProgramSide
from stoker.crossval.measures import parse_limit
from stoker.crossval.model_subject import (
    ModelLoad,
    ModelSubject,
    peak_bytes_of,
    read_texts,
    times_of_tokens,
)
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.plugin_messages import LoadRequest
from stoker.crossval.plugin_process import Plugin

# Its logits are 0 but for the next id, `sharp` there: the model's name says how sharp, and which tokens it has.
MODEL = """
import base64, json, struct, sys
sharp = 0.0
for line in sys.stdin:
    request = json.loads(line)
    op = request["op"]
    if op == "hello":
        answer = {"v": 1, "name": "fake", "version": "1", "can": ["tokenize", "logits"]}
    elif op == "load":
        name, sharp, digest = request["model"].rpartition("/")[2].split("-")
        ran = {"device": "cpu", "weights": "F32", "kv": "F32", "flash": False, "kernels": []}
        answer = {"ok": True, "n_vocab": 4, "n_layers": 1, "ran": ran, "tensors": 1, "used": 1, "width": 2,
                  "tokenizer_sha256": digest}
    elif op == "tokenize":
        answer = {"ids": [len(word) % 4 for word in request["text"].split()]}
    else:
        for pos, one in enumerate(request["ids"]):
            values = [0.0] * 4
            values[(one + 1) % 4] = float(sharp.replace("top", "1"))
            if sharp == "top":
                row = {"pos": pos, "top": [[0, -1.0]]}
            else:
                row = {"pos": pos, "logits": base64.b64encode(struct.pack("<4f", *values)).decode()}
            print(json.dumps(row), flush=True)
        answer = {"done": len(request["ids"])}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(MODEL)
    return path


def open_model(program: Path, model: str) -> ModelSubject:
    command = PluginCommand(label="fake", argv=(sys.executable, "-S", "-E", str(program)), env=dict(os.environ))
    load = ModelLoad(prompt_tokens=6, decoded_tokens=4)
    return ModelSubject(Plugin(command), LoadRequest(model=model), SystemClock(), load=load)


@pytest.fixture
def subject(program: Path) -> Iterator[ModelSubject]:
    made = open_model(program, "m-2-t")
    yield made
    made.close()


def test_a_run_has_the_speed_of_prompt_and_tokens_and_the_memory_of_the_runtime(subject: ModelSubject) -> None:
    run = subject.measure()
    assert set(run.measures) == {"prompt_tokens_per_second", "tokens_per_second", "latency_ms"}
    assert len(run.measures["latency_ms"]) in (1, 4)  # type: ignore[arg-type]  # a tuple
    assert run.peak_bytes is None or run.peak_bytes > 1_000_000
    facts = subject.facts()
    assert (facts["kind"], facts["runtime"], facts["device"], facts["decoded_tokens"]) == ("model", "fake", "cpu", 4)


def test_a_document_is_scored_by_the_tokens_after_its_first(subject: ModelSubject, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a aa aaa\n\nalone\n\naa a aa\n")
    scores = list(subject.score(read_texts(str(path))))
    assert [(one.name, one.tokens) for one in scores] == [("paragraph 1", 2), ("paragraph 3", 2)]
    total = math.log(3 + math.exp(2.0))
    assert scores[0].nll == pytest.approx(2 * (total - 2.0))
    assert scores[1].nll == pytest.approx(total + total - 2.0)


def test_two_models_are_gated_by_perplexity_over_documents_before_their_speed(program: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"name": "d{n}", "text": "a aa aaa aaaa{" a" * (n % 3)}"}}\n' for n in range(12)))
    place = GatePlace(
        clock=FakeClock(),
        environment={},
        machine={},
        versions={},
        open_model=lambda side, _name: open_model(program, side.path),
    )

    def gate(baseline: str, candidate: str, *limits: str) -> str:
        request = GateRequest(
            baseline="a", candidate="b", limits=tuple(map(parse_limit, limits)), texts=str(texts), warmup=0
        )
        sides = [ModelSide(path=baseline), ModelSide(path=candidate)]
        return run_gate(request, lambda: sides, place)[0].outcome

    alone = ("latency=off", "throughput=off")
    assert gate("m-2-t", "m-2-t", *alone) == "passed"
    assert gate("m-2-t", "m-1-t") == "failed", "before a single pair"
    with pytest.raises(NotVerified, match="tokenizers disagree"):
        gate("m-2-t", "m-2-other")
    with pytest.raises(PluginFailed, match="names no probability"):
        gate("m-2-t", "m-top-t")
    request = GateRequest(baseline="a", candidate="b", texts=str(texts))
    sides: list[GateSide] = [ModelSide(path="m-2-t"), ProgramSide(argv=("true",), folder="/")]
    with pytest.raises(Usage, match="texts are for models"):
        run_gate(request, lambda: sides, place)


def test_rows_that_come_in_bursts_have_only_a_mean() -> None:
    assert times_of_tokens([1.0, 1.2, 0.9, 1.1]) == (1.0, 1.2, 0.9, 1.1)
    assert times_of_tokens([8.0, 0.0, 0.0, 0.0, 8.0, 0.0]) == (16.0 / 6,)


def test_the_peak_of_a_process_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmHWM:\t    1024 kB\n")
    assert peak_bytes_of(7, str(tmp_path)) == 1024 * 1024
    assert peak_bytes_of(8, str(tmp_path)) is None


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"text": ""}', '{"text": 3}', "[1]"])
def test_a_line_that_is_no_document_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(LocalFile, match="line 2"):
        read_texts(str(path))
    path.write_text("\n")
    with pytest.raises(LocalFile, match="no documents"):
        read_texts(str(path))
