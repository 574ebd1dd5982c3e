from __future__ import annotations

import hashlib
import os

import pytest

from stoker.core.digests import Digest
from stoker.engine.scratch import Checkpoint, choose_checkpoint, digest_checkpoint
from tests.unit.trainer.programs import Place

KEY = Digest("a" * 64)
SAVE = """
def save(path, data):
    with open(path, "wb") as file:
        file.write(data)
def replace(path, data):
    save(path + ".tmp", data)
    os.replace(path + ".tmp", path)
"""
LINKED = "t._COPIED_BELOW_BYTES = 0\n"


def chosen(place: Place) -> bytes:
    checkpoint = choose_checkpoint(str(place.scratch), KEY).checkpoint
    assert checkpoint is not None
    with open(checkpoint.path, "rb") as file:
        return file.read()


def test_a_saved_checkpoint_is_named_with_its_digest(place: Place) -> None:
    ran = place.run(SAVE + "save('a.pt', b'one'); assert t.saved('a.pt', step=5)")
    (entry,) = place.index()
    assert entry.pop("at") > 0
    assert entry == {
        "file": "checkpoints/000001-a.pt",
        "step": 5,
        "sha256": hashlib.sha256(b"one").hexdigest(),
        "size_bytes": 3,
        "resume_key": KEY,
        "copied": False,
    }
    kept = os.path.join(place.scratch, entry["file"])
    assert ran.said[-1] == {"kind": "saved", "path": kept, "step": 5}
    assert choose_checkpoint(str(place.scratch), KEY).checkpoint == Checkpoint(path=os.path.realpath(kept), step=5)


def test_the_step_is_the_last_one_if_none_is_given(place: Place) -> None:
    place.run(SAVE + "t.step(41, loss=1.0); t.step(42); save('a.pt', b'one'); t.saved('a.pt')")
    assert place.index()[0]["step"] == 42


@pytest.mark.parametrize("how", ["", LINKED])
def test_the_one_before_is_kept_and_older_ones_go(place: Place, how: str) -> None:
    place.run(SAVE + how + "for i in range(5): replace('a.pt', b'%d' % i); assert t.saved('a.pt', step=i)")
    assert [entry["step"] for entry in place.index()] == [3, 4]
    assert sorted(os.listdir(place.scratch / "checkpoints")) == ["000004-a.pt", "000005-a.pt"]
    assert chosen(place) == b"4"
    os.truncate(place.scratch / "checkpoints" / "000005-a.pt", 0)
    assert chosen(place) == b"3"


def test_a_large_checkpoint_costs_no_second_copy(place: Place) -> None:
    place.run(SAVE + LINKED + "save('a.pt', b'one'); t.saved('a.pt')")
    assert os.path.samefile(place.folder / "a.pt", place.scratch / "checkpoints" / "000001-a.pt")


def test_a_checkpoint_that_is_overwritten_in_place_is_copied_from_then_on(place: Place) -> None:
    place.run(SAVE + LINKED + "for i in range(3): save('a.pt', b'%d' % i); assert t.saved('a.pt', step=i)")
    assert [(entry["step"], entry["copied"]) for entry in place.index()] == [(1, True), (2, True)]
    # The next attempt knows it, too, and may be killed while it writes.
    place.run(SAVE + LINKED + "save('a.pt', b'3'); t.saved('a.pt', step=3); save('a.pt', b'torn')")
    assert chosen(place) == b"3"


def test_what_was_written_over_in_place_is_not_named_any_more(place: Place) -> None:
    place.run(SAVE + LINKED + "for i in range(2): save('a.pt', b'%d' % i); t.saved('a.pt', step=i)")
    assert [entry["step"] for entry in place.index()] == [1]
    assert chosen(place) == b"1"


def test_saying_it_twice_does_no_harm(place: Place) -> None:
    place.run(SAVE + LINKED + "save('a.pt', b'one'); t.saved('a.pt', 1); t.saved('a.pt', 1)")
    assert chosen(place) == b"one"
    assert choose_checkpoint(str(place.scratch), KEY).refused == ()


@pytest.mark.parametrize("how", ["", LINKED])
def test_a_folder_is_a_checkpoint_too(place: Place, how: str) -> None:
    place.run(
        SAVE + how + "os.makedirs('ckpt/deep/er')\n"
        "save('ckpt/model', b'1'); save('ckpt/deep/er/opt', b'22'); save('ckpt/deep/rng', b'')\n"
        "assert t.saved('ckpt', step=1)"
    )
    (entry,) = place.index()
    kept = str(place.scratch / entry["file"])
    assert digest_checkpoint(kept) == (entry["sha256"], entry["size_bytes"])
    assert entry["size_bytes"] == 3
    assert choose_checkpoint(str(place.scratch), KEY).checkpoint == Checkpoint(path=os.path.realpath(kept), step=1)
    os.unlink(os.path.join(kept, "deep", "rng"))
    assert choose_checkpoint(str(place.scratch), KEY).checkpoint is None


def test_folders_are_linked_unless_written_over(place: Place) -> None:
    place.run(
        SAVE + LINKED + "os.mkdir('ckpt')\n"
        "for i in range(3): save('ckpt/model', b'%d' % i); save('ckpt/opt', b'x'); assert t.saved('ckpt', step=i)"
    )
    assert [(entry["step"], entry["copied"]) for entry in place.index()] == [(1, True), (2, True)]
    assert sorted(os.listdir(place.scratch / "checkpoints")) == ["000002-ckpt", "000003-ckpt"]


def test_checkpoints_of_another_configuration_do_not_stay(place: Place) -> None:
    place.run(SAVE + "save('a.pt', b'one'); t.saved('a.pt')", STOKER_RESUME_KEY="b" * 64)
    place.run(SAVE + "save('a.pt', b'two'); t.saved('a.pt')")
    assert [entry["resume_key"] for entry in place.index()] == [KEY]
    assert os.listdir(place.scratch / "checkpoints") == ["000002-a.pt"]


def test_a_damaged_index_is_begun_anew(place: Place) -> None:
    ran = place.run(
        SAVE
        + """
save("a.pt", b"one")
for text in ["", "{", "[]", '{"checkpoints": 3}', '{"checkpoints": [3, {"file": 4}, {}]}', "\\0"]:
    save(t.scratch() + "/checkpoints.json", text.encode())
    assert t.saved("a.pt"), text
"""
    )
    assert (ran.status, ran.err) == (0, "")
    assert chosen(place) == b"one"


def test_what_can_not_be_kept_is_told_and_changes_nothing(place: Place) -> None:
    ran = place.run(
        SAVE + "save('a.pt', b'one'); t.saved('a.pt')\n"
        "os.mkdir('empty'); os.chdir('empty')\n"
        "print([t.saved(what) for what in ('none.pt', '../empty', '', '.', '/dev/null/x')])"
    )
    assert (ran.status, ran.out) == (0, "[False, False, False, False, False]\n")
    assert ran.err.count("is not kept") == 5
    assert len(place.index()) == 1
    assert chosen(place) == b"one"


def test_a_crash_at_any_step_leaves_the_one_before(place: Place) -> None:
    ran = place.run(
        SAVE
        + """

save("a.pt", b"one"); t.saved("a.pt", 1)
named = open(t.scratch() + "/checkpoints.json").read()
save("a.pt", b"two")
def crash_at(module, name, call):
    real, calls = getattr(module, name), []
    def step(*given, **more):
        calls.append(1)
        return real(*given, **more) if len(calls) < call else os._exit(9)
    setattr(module, name, step)
steps = [(os, "makedirs", 1), (os, "listdir", 1), (t, "_copy", 1)]
steps += [(os, "fsync", 1), (os, "fsync", 2), (os, "fsync", 3), (os, "replace", 1)]
for step in steps:
    if os.fork() == 0:
        crash_at(*step)
        t.saved("a.pt", 2)
        os._exit(0)
    assert os.WEXITSTATUS(os.wait()[1]) == 9, step
    assert open(t.scratch() + "/checkpoints.json").read() == named, step
""",
        PYTHONWARNINGS="ignore",
    )
    assert (ran.status, ran.err) == (0, "")
    assert chosen(place) == b"one"
    assert place.run(SAVE + "save('a.pt', b'three'); assert t.saved('a.pt', 3)").status == 0
    assert chosen(place) == b"three"
    assert len(os.listdir(place.scratch / "checkpoints")) == 2


def test_a_full_disk_keeps_the_one_before(place: Place) -> None:
    ran = place.run(
        SAVE + "import resource, signal\n"
        "save('a.pt', b'one'); t.saved('a.pt', 1); save('b.pt', b'x' * 5000)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "print(t.saved('b.pt', 2))"
    )
    assert ran.out == "False\n"
    assert chosen(place) == b"one"
