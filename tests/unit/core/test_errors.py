"""The error tree and the table of exit codes, held together."""

import inspect
import re

import pytest

from stoker.core import errors
from stoker.core.errors import Diagnostic, InvalidInput, StokerError
from stoker.core.jsontext import dumps, loads

CLASSES = [found for found in vars(errors).values() if inspect.isclass(found) and issubclass(found, StokerError)]
BRANCHES = [errors.BadInput, errors.Refused, errors.Unavailable, errors.Damaged, errors.WorkFailed]


def make(error: type[StokerError]) -> StokerError:
    if issubclass(error, InvalidInput):
        return error("it is wrong", hint="make it right", faults=(Diagnostic("lr", "is not a number"),), path="a.toml")
    return error("it is wrong", hint="make it right", path="a.toml")


def test_every_error_declares_a_code_of_its_own():
    for error in CLASSES:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", vars(error)["code"]), error
        assert [other for other in CLASSES if other.code == error.code] == [error]


def test_every_error_declares_an_exit_code_of_the_table():
    for error in CLASSES:
        assert vars(error)["exit_code"] in errors.MEANINGS, error
        assert error.exit_code != errors.DONE, error


def test_every_error_says_what_it_stands_for():
    for error in CLASSES:
        assert inspect.cleandoc(vars(error)["__doc__"]).endswith("."), error


def test_every_error_keeps_message_hint_and_data_apart():
    for made in map(make, CLASSES):
        assert str(made) == made.message == "it is wrong", type(made)
        assert made.hint == "make it right", type(made)
        assert made.data["path"] == "a.toml", type(made)


def test_every_error_becomes_a_plain_object_that_json_can_carry():
    for error in CLASSES:
        body = make(error).to_dict()
        assert body["error"] == error.code, error
        assert body["exit_code"] == error.exit_code, error
        assert body["message"] == "it is wrong", error
        assert body["hint"] == "make it right", error
        assert loads(dumps(body)) == body, error


def test_every_error_leaves_the_program_with_its_own_exit_code():
    for error in CLASSES:
        assert errors.exit_code_of(make(error)) == error.exit_code, error


def test_the_tree_has_five_branches_and_the_bug():
    assert {error for error in CLASSES if error.__base__ is StokerError} == {*BRANCHES, errors.InternalError}


@pytest.mark.parametrize("branch", BRANCHES, ids=lambda branch: branch.__name__)
def test_every_branch_has_a_leaf(branch):
    assert [error for error in CLASSES if issubclass(error, branch) and error is not branch]


def test_no_error_sits_on_two_branches():
    for error in CLASSES:
        branches = sum(branch in error.__mro__ for branch in BRANCHES)
        assert branches == (error not in {StokerError, errors.InternalError}), error


@pytest.mark.parametrize(
    ("leaf", "branch", "exit_code"),
    [
        (errors.Usage, errors.BadInput, 2),
        (errors.LocalFile, errors.BadInput, 16),
        (errors.UnknownRecipe, errors.BadInput, 27),
        (errors.InvalidArgs, errors.BadInput, 28),
        (errors.InvalidPlan, errors.BadInput, 40),
        (errors.LockHeld, errors.Refused, 16),
        (errors.NoSpace, errors.Unavailable, 10),
        (errors.NoPermission, errors.Unavailable, 16),
        (errors.CorruptBytes, errors.Damaged, 13),
        (errors.StageFailed, errors.WorkFailed, 1),
        (errors.Cancelled, errors.WorkFailed, 130),
        (errors.Terminated, errors.WorkFailed, 143),
        (errors.InternalError, StokerError, 70),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_the_exit_codes_that_shells_rely_on_stay(leaf, branch, exit_code):
    assert issubclass(leaf, branch)
    assert leaf.exit_code == exit_code


def test_hint_and_data_are_left_out_of_the_object_where_there_are_none():
    assert errors.NotFound("no such job").to_dict() == {
        "error": "not_found",
        "exit_code": 1,
        "message": "no such job",
    }


def test_several_faults_are_reported_together_as_objects_and_as_data():
    faults = (Diagnostic("lr", "is not a number", "write 0.1"), Diagnostic("depth", "must be at least 1"))
    error = errors.InvalidArgs("2 errors in the arguments", faults=faults, recipe="tabular/gbt")
    assert error.faults == faults
    assert error.data == {
        "recipe": "tabular/gbt",
        "faults": [
            {"where": "lr", "message": "is not a number", "hint": "write 0.1"},
            {"where": "depth", "message": "must be at least 1"},
        ],
    }


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Diagnostic("lr", "is not a number"), "lr: is not a number"),
        (Diagnostic("lr", "is not a number", "write 0.1"), "lr: is not a number (write 0.1)"),
        (Diagnostic("", "the plan is empty"), "the plan is empty"),
    ],
)
def test_a_fault_is_one_line(fault, text):
    assert str(fault) == text
    assert text in repr(fault)


def test_faults_are_values():
    assert Diagnostic("a", "b") == Diagnostic("a", "b")
    assert (
        len(
            {
                Diagnostic("a", "b"),
                Diagnostic("a", "b"),
                Diagnostic("a", "b", "c"),
                Diagnostic("a", "c"),
                Diagnostic("b", "b"),
            }
        )
        == 4
    )
    assert Diagnostic("a", "b") != "a: b"  # type: ignore[comparison-overlap]  # that is the point


def test_every_exit_code_has_a_meaning_and_fits_a_shell():
    assert all(0 <= code <= 255 and meaning for code, meaning in errors.MEANINGS.items())
    assert len(set(errors.MEANINGS.values())) == len(errors.MEANINGS)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(KeyboardInterrupt(), 130), (ValueError("unforeseen"), 70), (MemoryError(), 70), (StokerError("odd"), 70)],
    ids=repr,
)
def test_what_is_no_leaf_of_ours_is_an_interrupt_or_a_bug(error, exit_code):
    assert errors.exit_code_of(error) == exit_code
