import json
import math
import re

import pytest

from stoker.core.events import LOSSY, VERSION, Event, Kinds, event_line
from stoker.core.jsontext import loads

KINDS = {name: value for name, value in vars(Kinds).items() if not name.startswith("_")}


def test_an_event_is_one_flat_object_behind_its_envelope():
    line = event_line(Event("stage_end", {"stage": "split", "elapsed_s": 0.5}), ts=1e9, seq=7, source="run")
    assert line == (
        '{"v":1,"ts":1000000000.0,"seq":7,"source":"run","kind":"stage_end","stage":"split","elapsed_s":0.5}'
    )


def test_an_event_without_fields_is_its_envelope():
    assert json.loads(event_line(Event("run_begin"), ts=0.0, seq=0, source="run")) == {
        "v": VERSION,
        "ts": 0.0,
        "seq": 0,
        "source": "run",
        "kind": "run_begin",
    }


@pytest.mark.parametrize("name", ["v", "ts", "seq", "source", "kind"])
def test_a_field_that_takes_a_name_of_the_envelope_is_refused(name):
    with pytest.raises(ValueError, match=rf"event warning uses a name of the envelope: \['{name}'\]"):
        event_line(Event("warning", {name: 1}), ts=0.0, seq=0, source="run")


def test_a_metric_that_is_not_finite_survives_the_stream():
    line = event_line(Event("stage_step", {"loss": math.inf}), ts=0.0, seq=0, source="run")
    assert '"loss":{"$float":"inf"}' in line
    assert loads(line)["loss"] == math.inf


def test_an_event_stays_on_one_line_whatever_its_text():
    text = 'a\nb\r\nc "d" \\ \0 \U0001f525'
    line = event_line(Event("warning", {"text": text}), ts=0.0, seq=0, source="run")
    assert not re.search(r"[\n\r\0]", line)
    assert loads(line)["text"] == text


def test_a_time_is_written_to_the_microsecond():
    line = event_line(Event("run_end"), ts=1_700_000_000.123_456_789, seq=0, source="run")
    assert json.loads(line)["ts"] == 1_700_000_000.123457


def test_the_kinds_that_readers_of_a_status_stream_know_are_all_there():
    assert set(KINDS.values()) >= {
        "stage_begin",
        "stage_end",
        "stage_skipped",
        "stage_failed",
        "stage_blocked",
        "stage_step",
        "step_gap",
        "stage_retrying",
    }


def test_a_kind_is_spelt_like_its_constant():
    assert all(value == name.lower() for name, value in KINDS.items())


def test_only_reports_of_progress_may_be_lost():
    assert {"stage_step", "download_progress"} == LOSSY
    assert [kind for kind in KINDS.values() if Event(kind).is_lossy] == ["stage_step", "download_progress"]


def test_two_events_do_not_share_their_fields():
    assert Event("warning").fields is not Event("warning").fields
