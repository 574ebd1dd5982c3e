from __future__ import annotations

import pytest

from stoker.coordinator.queue.submission_check import draft
from stoker.core.errors import InvalidInput
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.protocol.job_messages import Submission
from tests.contract.queue_driving import order


def faults_of(*jobs: JobSpec) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        draft(Submission(jobs=jobs))
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_are_told_together() -> None:
    bad = changed(order("bad"), id="0" * 64)
    nul = order("nul", recipe="a\0b")
    huge = changed(order("huge"), number=1 << 40)
    told = faults_of(order("good"), bad, nul, huge)
    assert len(told) == 3
    assert "is not the id of this job" in told[0]
    assert "recipe 'a\\x00b' has a character that is not printable" in told[1]
    assert "too large" in told[2]


@pytest.mark.parametrize("name", ["last", "..", "a/1", "--help", "two words", "\x1b[31mred", "a\nb"], ids=ascii)
def test_a_name_that_means_something_else_where_it_is_typed_or_shown_is_refused(name: str) -> None:
    assert "not a valid job name" in faults_of(changed(order("one"), name=name))[0]


@pytest.mark.parametrize("field", ["recipe", "mode"])
@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "a\u202eb"], ids=ascii)
def test_a_recipe_or_mode_that_would_be_obeyed_where_it_is_shown_is_refused(field: str, text: str) -> None:
    (told,) = faults_of(changed(order("one"), **{field: text}))
    assert f"{field} " in told
    assert text not in told


@pytest.mark.parametrize("label", ["../../x", "/etc", "a/b", "..", "a\x1b[2J", "c:x"], ids=ascii)
def test_a_label_that_leads_out_of_the_folder_of_its_sweep_is_refused(label: str) -> None:
    assert "label is not a valid folder name" in faults_of(changed(order("one"), label=label))[0]


@pytest.mark.parametrize("field", ["recipe", "schema_version", "mode", "seed", "split_recipe", "train_hosts"])
def test_everything_that_changes_the_result_belongs_to_the_id(field: str) -> None:
    other = {"recipe": "x/y", "schema_version": 2, "mode": "m", "seed": 1, "split_recipe": "s", "train_hosts": ("h",)}
    assert faults_of(changed(order("one"), **{field: other[field]}))


@pytest.mark.parametrize("field", ["priority", "name", "label", "folder", "attempts", "allowed_hosts"])
def test_what_does_not_change_the_result_does_not_belong_to_the_id(field: str) -> None:
    other = {"priority": 3, "name": "x", "label": "l", "folder": "/f", "attempts": 4, "allowed_hosts": ("h",)}
    draft(Submission(jobs=(changed(order("one"), **{field: other[field]}),)))


def test_jobs_that_wait_for_themselves_are_refused() -> None:
    assert faults_of(order("a", after=("a",))) == ["a: waits for itself: a → a"]
    circle = faults_of(order("a", after=("c",)), order("b", after=("a/0", "a")), order("c", after=("b",)))
    assert circle == ["a: waits for itself: a → c → b → a"]


def test_a_point_of_a_sweep_may_come_after_another_one() -> None:
    draft(Submission(jobs=(order("s", 1), order("s", 2, after=("s/1",)))))
    assert faults_of(order("s", 1), order("s", 2, after=("s",))) == ["s: waits for itself: s → s"]


def test_a_long_chain_is_no_circle() -> None:
    jobs = [order("j0"), *(order(f"j{at}", after=(f"j{at - 1}", "j0")) for at in range(1, 3000))]
    assert len(draft(Submission(jobs=tuple(jobs))).all) == 3000


def test_the_key_is_no_part_of_what_it_stands_for() -> None:
    jobs = (order("one"),)
    first, second = (draft(Submission(jobs=jobs, key=key)).payload for key in ("a", "b"))
    assert first == second != ""
    assert draft(Submission(jobs=(order("two"),), key="a")).payload != first
