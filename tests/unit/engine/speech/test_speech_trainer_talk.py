from __future__ import annotations

from stoker.engine.metrics.printed import PrintedMetrics
from stoker.engine.runners.program.trainer_lines import (
    FAULTS_TOLD,
    TrainerCompletion,
    TrainerFailure,
    TrainerParser,
    parse_control,
    parse_line,
)


def heard(*lines: bytes) -> tuple[TrainerParser, list[str | None]]:
    talk = TrainerParser()
    return talk, [talk.hear(parse_line(line, PrintedMetrics())) for line in lines]


def test_a_right_conversation_has_no_faults() -> None:
    talk, faults = heard(
        b'{"kind":"contract","version":1}',
        b'{"kind":"step","step":1,"of":10,"metrics":{"loss":2}}',
        b"some output with x=1 in it",
        b'{"kind":"eval","metrics":{"loss":3}}',
        b'{"kind":"saved","path":"a.pt","step":1}',
        b'{"kind":"step","step":2,"metrics":{"loss":1}}',
        b'{"kind":"done","metrics":{"loss":0.5}}',
    )
    assert faults == [None] * 7
    assert talk.last_word == TrainerCompletion(metrics={"loss": 0.5})


def test_nothing_may_follow_the_last_word() -> None:
    talk, faults = heard(b'{"kind":"failed","message":"x"}', b'{"kind":"done"}', b'{"kind":"step","step":1}')
    assert faults[1:] == [
        "done after the last word, which was failed",
        "step after the last word, which was failed",
    ]
    assert talk.last_word == TrainerFailure(message="x")


def test_a_heartbeat_behind_the_last_word_is_harmless() -> None:
    assert heard(b'{"kind":"done"}', b'{"kind":"heartbeat"}')[1] == [None, None]


def test_json_of_a_program_that_does_not_speak_the_contract_is_its_own_business() -> None:
    talk, faults = heard(b'{"kind":"epoch_end","loss":1}', b'{"kind":"sta', b'{"kind":"step","step":"one"}')
    assert faults == [None, None, None]
    assert not talk.speaks


def test_once_it_speaks_the_contract_unknown_kinds_and_malformed_lines_are_faults() -> None:
    _, faults = heard(b'{"kind":"step","step":1}', b'{"kind":"epoch_end"}', b'{"kind":"st')
    assert faults == [None, "the contract has no kind 'epoch_end'", 'not JSON: {"kind":"st']


def test_every_line_of_the_control_file_is_meant_for_us() -> None:
    talk = TrainerParser()
    assert talk.hear_control(parse_control(b"hello")) == "not JSON: hello"
    assert talk.speaks


def test_a_metric_line_that_is_none_is_a_fault_of_any_program() -> None:
    assert heard(b"stoker-metric: loss=high")[1] == ["'loss=high' is not name=number: stoker-metric: loss=high"]


def test_another_version_of_the_contract_is_refused_as_a_whole() -> None:
    talk, faults = heard(b'{"kind":"contract","version":2}', b'{"kind":"failed"}', b"loss=1")
    assert faults == [
        "it speaks version 2 of the contract, we speak 1",
        "failed of another version of the contract is not read",
        None,
    ]
    assert talk.last_word is None


def test_faults_are_counted_and_not_told_endlessly() -> None:
    talk, faults = heard(b'{"kind":"done"}', *[b'{"kind":"done"}'] * (FAULTS_TOLD + 5))
    assert all(faults[1 : FAULTS_TOLD + 1])
    assert faults[FAULTS_TOLD + 1 :] == [""] * 5
    assert talk.faults == FAULTS_TOLD + 5


def test_the_number_of_lost_rows_only_grows() -> None:
    talk, _ = heard(b'{"kind":"step","step":1,"lost":9}', b'{"kind":"step","step":2,"lost":0}')
    assert talk.lost == 9
