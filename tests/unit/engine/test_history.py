from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import Digest
from stoker.engine.action import Action, StageFacts
from stoker.engine.run_history import History
from tests.unit.host.real_processes import code_of, fork


def action(stage: str = "cook/mix", **args: Any) -> Action:
    facts = StageFacts(stage=stage, version=1, output="k@1", code={"(module)": "a" * 64}, env={})
    return Action(facts=facts, facts_digest=facts.digest(), inputs=(), args=args)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "history.db")


def noted(path: str, *ran: Action, node: str = "mix", plan: str = "p", seconds: float = 2.0) -> History:
    history = History(path)
    for at_s, one in enumerate(ran):
        history.note(plan=plan, node=node, action=one, key=one.key(), at_s=float(at_s), seconds=seconds)
    history.close()
    return history


def differing(history: History, wanted: Action, *, node: str = "mix", plan: str = "p") -> list[str] | None:
    nearest = history.nearest(plan=plan, node=node, action=wanted)
    return None if nearest is None else [one.field for one in nearest.differences]


def test_what_never_ran_has_nothing_near(path: str) -> None:
    history = noted(path, action(a=1))
    assert differing(history, action(a=1), node="other") is None
    assert differing(history, action(a=1), plan="other") is None
    assert History(f"{path}-new").nearest(plan="p", node="mix", action=action()) is None


def test_the_execution_that_differs_least_is_the_nearest(path: str) -> None:
    history = noted(path, action(a=1, b=1), action(a=2, b=2), action(a=3, b=3))
    assert differing(history, action(a=1, b=9)) == ["args.b"]
    assert differing(history, action(a=3, b=3)) == []
    nearest = history.nearest(plan="p", node="mix", action=action(a=2, b=0))
    assert nearest is not None
    assert nearest.ran.key == action(a=2, b=2).key()
    assert nearest.ran.seconds == 2.0


def test_the_newest_is_taken_among_equals(path: str) -> None:
    history = noted(path, action(a=1), action(a=2), action(a=3))
    nearest = history.nearest(plan="p", node="mix", action=action(a=9))
    assert nearest is not None
    assert nearest.ran.key == action(a=3).key()


def test_another_process_remembers(path: str) -> None:
    def look() -> None:
        assert differing(History(path), action(a=2)) == ["args.a"]

    noted(path, action(a=1))
    assert code_of(fork(look)) == 0


def test_what_was_noted_is_known_to_the_next_run_of_this_process(path: str) -> None:
    history = History(path)
    assert differing(history, action(a=1)) is None
    history.note(plan="p", node="mix", action=action(a=1), key=action(a=1).key(), at_s=1.0, seconds=1.0)
    history.close()
    assert differing(history, action(a=2)) == ["args.a"]
    history.close()


def test_a_node_will_take_as_long_as_it_last_did(path: str) -> None:
    history = noted(path, action(a=1), seconds=5.0)
    assert history.estimate_s(plan="p", node="mix", stage="cook/mix") == 5.0


def test_a_trial_of_a_sweep_is_known_by_its_arguments_and_not_by_its_number(path: str) -> None:
    noted(path, action(lr=1), node="1.mix", seconds=2.0)
    noted(path, action(lr=2), node="2.mix", seconds=20.0)
    history = noted(path, action("cook/bake", lr=2), node="2.bake", seconds=90.0)
    named = {"plan": "p", "stage": "cook/mix"}
    assert history.estimate_s(node="1.mix", args={"lr": 2}, **named) == 20.0
    assert history.estimate_s(node="2.mix", args={"lr": 1}, **named) == 2.0
    assert history.estimate_s(node="mix", args={"lr": 1}, **named) == 2.0
    assert history.estimate_s(node="3.mix", args={"lr": 3}, **named) == 11.0, "a new trial: the mean of those known"


def test_only_a_number_at_the_beginning_of_a_name_is_that_of_a_trial(path: str) -> None:
    noted(path, action(a=1), node="layer1.mix", seconds=2.0)
    history = noted(path, action(a=1), node="layer2.mix", seconds=20.0)
    named = {"plan": "p", "stage": "cook/mix"}
    assert history.estimate_s(node="layer1.mix", args={"a": 1}, **named) == 2.0
    assert history.estimate_s(node="layer2.mix", args={"a": 1}, **named) == 20.0


def test_an_estimate_knows_what_was_written_since_the_one_before(path: str) -> None:
    history = noted(path, action(a=1), seconds=2.0)
    named = {"plan": "p", "node": "mix", "stage": "cook/mix"}
    assert history.estimate_s(args={"a": 2}, **named) == 2.0
    for index in range(2, 258):
        one = action(a=index)
        history.note(plan="p", node="mix", action=one, key=one.key(), at_s=float(index), seconds=7.0)
    assert history.estimate_s(args={"a": 2}, **named) == 7.0
    history.close()


def test_a_new_node_will_take_as_long_as_its_stage_did_lately(path: str) -> None:
    history = noted(path, action(a=1), seconds=4.0)
    noted(path, action(a=2), node="other", seconds=6.0)
    assert history.estimate_s(plan="new", node="new", stage="cook/mix") == 5.0
    assert history.estimate_s(plan="new", node="new", stage="cook/unheard") is None


@pytest.mark.parametrize("damage", ["text", "truncated", "folder", "no table", "other table"])
def test_a_damaged_history_turns_itself_off(path: str, damage: str) -> None:
    noted(path, *(action(a=index, text="x" * 500) for index in range(50)))
    if damage == "text":
        Path(path).write_text("not a database" * 100)
    elif damage == "truncated":
        os.truncate(path, 5000)
    elif damage == "folder":
        os.unlink(path)
        os.mkdir(path)
    else:
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE ran")
            if damage == "other table":
                db.execute("CREATE TABLE ran (x)")
        db.close()
    history = History(path)
    history.nearest(plan="p", node="mix", action=action(a=99))
    history.estimate_s(plan="p", node="mix", stage="cook/mix")
    history.note(plan="p", node="mix", action=action(a=1), key=Digest("0" * 64), at_s=1.0, seconds=1.0)
    history.close()
    if damage in ("text", "folder", "other table"):
        assert path in history.trouble


def test_a_page_that_is_damaged_turns_it_off_too(path: str) -> None:
    noted(path, *(action(a=index, text="x" * 900) for index in range(300)))
    with open(path, "r+b") as file:
        for page in range(1, os.path.getsize(path) // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    history = History(path)
    assert history.nearest(plan="p", node="mix", action=action(a=99)) is None
    assert history.estimate_s(plan="p", node="mix", stage="cook/mix") is None
    assert history.trouble
    history.close()


def test_a_row_that_does_not_read_is_passed_over(path: str) -> None:
    history = noted(path, action(a=1), action(a=2))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE ran SET action = '{' WHERE at = 1")
    db.close()
    assert differing(history, action(a=2)) == ["args.a"]
    history.close()


def test_many_executions_are_written_as_they_come(path: str) -> None:
    history = History(path)
    for index in range(600):
        one = action(a=index)
        history.note(plan="p", node=f"n{index}", action=one, key=one.key(), at_s=float(index), seconds=1.0)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM ran").fetchone()[0] >= 512
    db.close()
    history.close()
    assert differing(history, action(a=0), node="n599") == ["args.a"]
    history.close()
