"""Overrides on a tree: change, add, force, delete, list edits, and what each of them refuses."""

from __future__ import annotations

import pytest

from stoker.config.values import NOTHING, DeclaredLeaf
from tests.unit.config.composing import Desk, closed, real, reals, texts, whole

SCHEMA = closed(lr=real(0.1), model__depth=whole(3), tags=texts(["a", "b"]), opts=reals({"a": 1.0, "b": 2.0}))
TREE = "lr: 0.1\nmodel: {depth: 3, width: 4}\ntags: [a, b, b]\nsteps: [{n: 1}, {n: 2}]\nnone: null\n"


@pytest.fixture
def tree(desk: Desk) -> Desk:
    return desk.write(config=TREE)


def test_a_change_of_what_is_there(tree: Desk):
    assert tree.values("lr=1", "model.depth=9")["model"] == {"depth": 9, "width": 4}


def test_a_change_of_a_key_that_is_nowhere_is_a_fault_with_the_nearest_and_a_plus(tree: Desk):
    fault = tree.fault("model.dept=9")
    assert fault.where == "argument 1: model.dept"
    assert "'model.depth'" in fault.hint
    assert "+model.dept=9 adds it" in fault.hint
    assert fault.shown == "model.dept=9\n^^^^^^^^^^"


def test_a_change_by_the_last_part_of_a_path_brings_the_whole_path(tree: Desk):
    assert "'model.depth'" in tree.fault("depth=9").hint


def test_without_a_file_everything_is_free_in_an_open_schema(desk: Desk):
    assert desk.values("lr=1", "model.depth=2", files=[]) == {"lr": 1, "model": {"depth": 2}}


def test_in_a_closed_schema_a_change_of_what_is_unknown_offers_a_note(desk: Desk):
    assert "+nmae=x keeps it as a note" in desk.fault("nmae=x", files=[], schema=SCHEMA).hint


def test_an_addition_of_what_is_not_there(tree: Desk):
    assert tree.values("+model.heads=8", "+new.branch.x=1")["model"]["heads"] == 8


@pytest.mark.parametrize("word", ["+lr=1", "+model.depth=1", "+none=1", "+tags=[x]"])
def test_an_addition_of_what_is_there_is_a_fault(tree: Desk, word: str):
    fault = tree.fault(word)
    assert "already exists" in fault.message
    assert fault.hint == f"write {word[1:].partition('=')[0]}=… to change it"


def test_an_addition_over_a_declared_default_is_a_fault(desk: Desk):
    assert "already" in desk.fault("+lr=1", files=[], schema=SCHEMA).message


def test_force_changes_or_adds(tree: Desk):
    values = tree.values("++lr=2", "++brand.new=3")
    assert (values["lr"], values["brand"]) == (2, {"new": 3})


def test_a_map_given_for_a_branch_merges(tree: Desk):
    assert tree.values("model={depth: 7}")["model"] == {"depth": 7, "width": 4}
    assert tree.values("+model={heads: 7}")["model"] == {"depth": 3, "width": 4, "heads": 7}
    assert tree.values("++model={heads: {n: 1}}")["model"]["heads"] == {"n": 1}


def test_a_map_given_for_a_branch_is_held_to_the_same_rules(tree: Desk):
    assert tree.fault("model={dpeth: 7}").where == "argument 1: model.dpeth"
    assert "already" in tree.fault("+model={depth: 7}").message


def test_a_map_given_for_a_declared_map_is_its_value(desk: Desk):
    desk.write(config="opts: {c: 3}\n")
    assert desk.values(schema=SCHEMA)["opts"] == {"a": 1.0, "b": 2.0, "c": 3.0}


def test_a_single_value_takes_the_place_of_a_branch(tree: Desk):
    assert tree.values("model=3")["model"] == 3


def test_a_deletion_takes_a_leaf_or_a_branch_and_is_remembered(tree: Desk):
    composed = tree.compose("~model.depth")
    assert composed.values["model"] == {"width": 4}
    assert composed.origins["model.depth"][-1].value is NOTHING
    assert "model" not in tree.values("~model")
    assert tree.values("~model.depth", "~model.width")["model"] == {}


def test_a_deletion_may_name_the_value_that_it_expects(tree: Desk):
    assert "lr" not in tree.values("~lr=0.1")
    fault = tree.fault("~lr=0.2")
    assert fault.message == "is 0.1, so it is not deleted"
    assert fault.hint == "write ~lr to delete it anyway"


def test_a_deletion_of_what_is_nowhere_is_a_fault_with_the_nearest(tree: Desk):
    assert "'model.depth'" in tree.fault("~model.dpth").hint


def test_a_declared_leaf_that_is_deleted_goes_back_to_its_default(desk: Desk):
    desk.write(config="lr: 5\nmodel: {depth: 9}\n")
    composed = desk.compose("~lr", "~model", schema=SCHEMA)
    assert (composed.values["lr"], composed.values["model"]) == (0.1, {"depth": 3})
    assert [one.value for one in composed.origins["lr"]] == [0.1, 5.0, NOTHING, 0.1]


def test_a_required_leaf_that_is_deleted_is_missing(desk: Desk):
    desk.write(config="lr: 5\n")
    assert "required" in desk.fault("~lr", schema=closed(lr=real())).message


def test_a_list_is_appended_to_and_removed_from(tree: Desk):
    assert tree.values("tags+=[c,d]")["tags"] == ["a", "b", "b", "c", "d"]
    assert tree.values("tags+=c")["tags"] == ["a", "b", "b", "c"]
    assert tree.values("tags-=b")["tags"] == ["a"]
    assert tree.values("tags-=[a,b]")["tags"] == []


def test_edits_of_a_declared_list_are_read_by_its_type(desk: Desk):
    assert desk.values("tags+=[007]", files=[], schema=SCHEMA)["tags"] == ["a", "b", "007"]
    assert desk.values("tags-=[b]", files=[], schema=SCHEMA)["tags"] == ["a"]


@pytest.mark.parametrize(
    ("word", "says"),
    [("tags-=[zz]", "there is no zz in it"), ("lr+=[1]", "is not a list"), ("tgas+=[1]", "there is no such key")],
)
def test_an_edit_that_makes_no_sense_is_a_fault(tree: Desk, word: str, says: str):
    assert tree.fault(word).message == says


def test_an_item_of_a_list_is_a_step_of_the_path(tree: Desk):
    values = tree.values("tags.0=x", "steps.1.n=5", "+steps.0.m=1")
    assert values["tags"] == ["x", "b", "b"]
    assert values["steps"] == [{"n": 1, "m": 1}, {"n": 5}]
    assert tree.values("~steps.0")["steps"] == [{"n": 2}]
    assert "no such key" in tree.fault("tags.7=x").message


def test_an_item_of_a_declared_map_is_checked_with_the_whole(desk: Desk):
    assert desk.values("opts.a=3", "+opts.c=4", files=[], schema=SCHEMA)["opts"] == {"a": 3.0, "b": 2.0, "c": 4.0}
    assert desk.values("~opts.a", files=[], schema=SCHEMA)["opts"] == {"b": 2.0}
    assert "expected a number" in desk.fault("opts.a=x", files=[], schema=SCHEMA).message
    assert "no such key" in desk.fault("opts.zz=1", files=[], schema=SCHEMA).message


def test_an_item_of_a_declared_list_of_text_stays_text(desk: Desk):
    assert desk.values("tags.0=12", files=[], schema=SCHEMA)["tags"] == ["12", "b"]


def test_overrides_are_applied_in_order(tree: Desk):
    assert tree.values("lr=1", "lr=2")["lr"] == 2
    assert tree.values("~lr", "+lr=3")["lr"] == 3
    assert tree.values("tags=[z]", "tags+=y")["tags"] == ["z", "y"]


def test_a_wrong_choice_is_shown_under_itself(desk: Desk):
    fault = desk.fault("model.depth=deep", files=[], schema=SCHEMA)
    assert fault.shown == "model.depth=deep\n            ^^^^"


def test_a_word_that_another_choice_takes_brings_that_one(desk: Desk):
    schema = closed(schedule=either("cosine", "linear"), turns=either("together", "priority"), lr=real(0.1))
    assert desk.fault("schedule=priority", files=[], schema=schema).hint == "did you mean turns=priority?"
    assert desk.fault("schedule=fast", files=[], schema=schema).hint == ""
    assert desk.fault("lr=priority", files=[], schema=schema).hint == ""


def either(*words: str) -> DeclaredLeaf:
    def check(value: object) -> object:
        if value not in words:
            raise ValueError("it is none of them")
        return value

    return DeclaredLeaf(path="", read=check, check=check, says="|".join(words), default=words[0])
