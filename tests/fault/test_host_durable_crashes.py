"""Kill -9 just before every step of a durable write: the name shows the old bytes or the new ones, never a part."""

from __future__ import annotations

import os
import signal

import pytest

from stoker.host.durable import CREATE_STEPS, MOVE_STEPS, WRITE_STEPS, create_file, move_into, sweep_temps, write_file
from tests.unit.host.real_processes import code_of, fork

OLD = b"old" * 1000
NEW = b"new" * 200_000


def _die_at(fatal: str):
    def on_step(step: str) -> None:
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def _sweep_and_list(folder) -> list[str]:
    sweep_temps(folder, 0, now_s=2**40)
    return os.listdir(folder)


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_a_writer_killed_at_any_step_leaves_old_or_new_content(tmp_path, step):
    target = tmp_path / "a"
    write_file(target, OLD)
    assert code_of(fork(lambda: write_file(target, NEW, on_step=_die_at(step)))) == -signal.SIGKILL
    assert target.read_bytes() == (NEW if step == "sync_dir" else OLD)
    assert _sweep_and_list(tmp_path) == ["a"]
    write_file(target, NEW)
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("step", CREATE_STEPS)
def test_a_creator_killed_at_any_step_leaves_nothing_or_everything(tmp_path, step):
    target = tmp_path / "a"
    assert code_of(fork(lambda: create_file(target, NEW, on_step=_die_at(step)))) == -signal.SIGKILL
    was_published = step in {"unlink", "sync_dir"}
    assert target.exists() == was_published
    assert _sweep_and_list(tmp_path) == (["a"] if was_published else [])
    assert create_file(target, NEW) != was_published
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("step", MOVE_STEPS)
def test_a_promotion_killed_at_any_step_loses_nothing(tmp_path, step):
    draft, target = tmp_path / "draft", tmp_path / "blob"
    draft.write_bytes(NEW)
    assert code_of(fork(lambda: move_into(draft, target, mode=0o444, on_step=_die_at(step)))) == -signal.SIGKILL
    assert draft.read_bytes() == NEW
    assert not target.exists()


def test_readers_of_a_file_that_is_replaced_all_the_time_always_see_it_whole(tmp_path):
    target = tmp_path / "a"
    contents = [bytes([65 + number]) * (1000 + number) for number in range(20)]
    write_file(target, contents[0])

    def rewrite() -> None:
        while True:
            for content in contents:
                write_file(target, content)

    writer = fork(rewrite)
    try:
        seen = {target.read_bytes() for _ in range(3000)}
    finally:
        os.kill(writer, signal.SIGKILL)
        assert code_of(writer) == -signal.SIGKILL
    assert seen <= set(contents)
    assert len(seen) > 1
