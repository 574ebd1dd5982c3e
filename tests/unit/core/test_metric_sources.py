"""Patterns of users are refused if one line may take long, by their structure."""

from __future__ import annotations

import re
import time

import pytest

from stoker.core.text import PATTERN_BYTES, is_metric_pattern, metric_source_fault

GOOD = [
    r"loss_(\w+): (\S+)",
    r"quality is (\S+)",
    r"acc=(\d+\.\d+) f1=(\d+\.\d+)",
    r"loss=(\d+\.?\d*) acc=(\d+\.?\d*) f1=(\d+\.?\d*)",
    r"(\w+)\s*[:=]\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)",
    r"^(?:step|iter) \d+ (\d+)",
    r"x=(\d+|nan)",
    r"(?i)Loss (\d+)$",
    r".*loss.*=(\S+)",
    r"Epoch \d+/\d+ .* loss: (\S+) acc: (\S+)",
    r"\[\d+/\d+\].*?(\w+): ([-\d.e]+)",
    r"\|\s*(\w+)\s*\|\s*(\S+)\s*\|",
    r"(?<=loss )(\S+)",
    r"(?P<name>[^ :]+): (?P<value>\S++)",
    "off",
    "runs/",
    "./we(ird/path",
    "/data/run (1)",
]
OVERLAP = "several of its repetitions match the same text"
NESTED = "it repeats what repeats"


@pytest.mark.parametrize("text", GOOD)
def test_a_pattern_that_is_fast_on_any_line_is_accepted(text: str) -> None:
    assert metric_source_fault(text) == ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is empty"),
        ("(", "it is no regular expression: missing )"),
        ("(?:x)", "it has no group for the number"),
        (r"((a+)+)", NESTED),
        (r"((?:a+)++)", NESTED),
        (r"(\w*)(\w*)(\w*)(\w*)y", OVERLAP),
        (r"(a{0,500}a{0,500}a{0,500}a{0,500})!", OVERLAP),
        (r"loss.*: (.*) (.*)x", OVERLAP),
        (r"(\w*)(\w*)(\w*)$", OVERLAP),
        (r"(\w*)(?=\w*\w*y)", OVERLAP),
        (r"(.*)(.*)(.*)\1", OVERLAP),
        (r"a*(.+(?:(?:\w(a)*))b)", OVERLAP),
        (r"1*?\d+?(1+)!", OVERLAP),
        (r"(?i)([A-Z]*)([a-z]*)([A-Z]*)y", OVERLAP),
        ("(" + "a?" * 28 + "a" * 28 + ")", OVERLAP),
        ("(" + "(?:a|a)" * 26 + "y)", OVERLAP),
    ],
)
def test_another_one_is_refused_with_the_reason(text: str, fault: str) -> None:
    assert metric_source_fault(text).startswith(fault)


def test_a_text_that_begins_as_a_path_is_no_pattern() -> None:
    assert [is_metric_pattern(text) for text in ("a(b)", "./a(b)", "../a(b)", "/a(b)", "a/b")] == [True, *[False] * 4]


@pytest.mark.timing
@pytest.mark.parametrize("pattern", [text for text in GOOD if is_metric_pattern(text)])
def test_what_is_accepted_takes_less_than_a_second_for_a_line_made_to_slow_it_down(pattern: str) -> None:
    found = re.compile(pattern.encode())
    for unit in (
        b"a",
        b"1",
        b" ",
        b"loss",
        b"loss: 1 ",
        b"a=",
        b"1.",
        b"| a ",
        b"loss=%s acc=%s " % ((b"1" * 140,) * 2),
    ):
        line = (unit * PATTERN_BYTES)[: PATTERN_BYTES - 1] + b"!"
        begun_s = time.thread_time()
        list(found.finditer(line))
        assert time.thread_time() - begun_s < 1.0, unit
