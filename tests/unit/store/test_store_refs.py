from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.digests import Digest
from stoker.core.errors import Ambiguous, BadInput, CorruptBytes, NotFound, Refused
from stoker.store import prune
from stoker.store.prune import carry_out, decide_prune, resolve
from stoker.store.refs import (
    Ref,
    check_ref_name,
    find_ref,
    list_refs,
    ref_path,
    refuse_if_damaged,
    remove_ref,
    set_ref,
)
from tests.unit.store.real_stores import BIG, clock_of_now, commit, found, key_of, make_store, put_in


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store")


def a_ref(name: str, of: str, kind: str = "") -> Ref:
    return Ref(name=name, digest=key_of(f"tree {of}"), key=key_of(of), kind=kind, files=1, size_bytes=2, at_s=3.5)


def test_a_ref_is_read_back_as_it_was_written(store):
    ref = a_ref("base", "a", kind="gguf")
    assert set_ref(store.places, ref, replace=False) is None
    assert find_ref(store.places, "base") == ref
    assert list_refs(store.places) == [ref]
    assert find_ref(store.places, "other") is None


def test_a_name_is_moved_only_when_told_and_says_what_it_stood_for(store):
    first, second = a_ref("base", "a"), a_ref("base", "b")
    set_ref(store.places, first, replace=False)
    with pytest.raises(Refused, match="the name 'base' already belongs to another tree"):
        set_ref(store.places, second, replace=False)
    assert find_ref(store.places, "base") == first
    assert set_ref(store.places, second, replace=True) == first
    assert find_ref(store.places, "base") == second


def test_setting_a_ref_again_changes_nothing_but_its_kind(store):
    set_ref(store.places, a_ref("base", "a"), replace=False)
    before = os.stat(ref_path(store.places, "base")).st_ino
    assert set_ref(store.places, a_ref("base", "a"), replace=False) is None
    assert os.stat(ref_path(store.places, "base")).st_ino == before
    assert set_ref(store.places, a_ref("base", "a", kind="new"), replace=False) is None
    assert find_ref(store.places, "base") == a_ref("base", "a", kind="new")


def test_a_ref_that_is_taken_away_is_gone(store):
    set_ref(store.places, a_ref("base", "a"), replace=False)
    assert remove_ref(store.places, "base")
    assert not remove_ref(store.places, "base")
    assert list_refs(store.places) == []


@pytest.mark.parametrize("name", ["a b", "ünï", "%41", "model.gguf", "..a", "C:", "con", "x" * 150])
def test_names_of_every_sort_are_kept_apart(store, name):
    for one in (name, "A", "a"):
        set_ref(store.places, a_ref(check_ref_name(one), one), replace=False)
    assert {ref.name for ref in list_refs(store.places)} == {name, "A", "a"}
    assert len(os.listdir(store.places.refs)) == 4


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "last", "-x", "a/b", "/etc/passwd", "../../x", "a\nb", "a\x00", "f" * 64, "x" * 201, "\udcff"],
)
def test_names_that_mean_something_else_or_lead_elsewhere_are_refused(name):
    with pytest.raises(BadInput, match="invalid name"):
        check_ref_name(name)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:30],
        lambda data: b"",
        lambda data: data.replace(b"ref/1", b"ref/2"),
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data + b"more\n",
    ],
)
def test_a_damaged_ref_is_called_damaged_and_nothing_is_pruned_meanwhile(store, spoil):
    commit(store, "result", {"x": b"r" * BIG})
    set_ref(store.places, a_ref("base", "a"), replace=False)
    path = Path(ref_path(store.places, "base"))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(spoil(data))
    ref = find_ref(store.places, "base")
    assert ref is not None
    assert ref.damage
    with pytest.raises(CorruptBytes, match="the ref base can't be read"):
        refuse_if_damaged(store.places)
    nothing = decide_prune([], now_s=0, max_bytes=0, older_than_s=None)
    with pytest.raises(CorruptBytes):
        carry_out(store, nothing, clock=clock_of_now())
    assert found(store, "result").has_bytes
    with pytest.raises(Refused, match="a ref that can't be read"):
        set_ref(store.places, a_ref("base", "a"), replace=False)
    assert remove_ref(store.places, "base")
    refuse_if_damaged(store.places)


def test_a_ref_under_another_name_is_not_believed(store):
    set_ref(store.places, a_ref("base", "a"), replace=False)
    os.rename(ref_path(store.places, "base"), ref_path(store.places, "other"))
    ref = find_ref(store.places, "other")
    assert ref is not None
    assert ref.damage == "it is the ref of 'base'"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_something_else_in_a_refs_place_is_damage_and_never_waited_for(store, make):
    make(ref_path(store.places, "odd"))
    ref = find_ref(store.places, "odd")
    assert ref is not None
    assert ref.damage
    assert remove_ref(store.places, "odd")
    assert os.path.exists("/etc/passwd")


def test_what_was_put_is_found_by_name_digest_and_key(store, tmp_path):
    (tmp_path / "f").write_bytes(b"1" * BIG)
    ref = put_in(store, tmp_path / "f", "base").ref
    for text in ("base", ref.digest, ref.digest[:8], ref.key[:8]):
        (record,) = resolve(store, text)
        assert record.digest == ref.digest


def test_one_tree_under_several_keys_is_one_thing(store, tmp_path):
    (tmp_path / "x").write_bytes(b"1" * BIG)
    ref = put_in(store, tmp_path / "x", "base").ref
    commit(store, "result", {"x": b"1" * BIG})
    assert {record.key for record in resolve(store, ref.digest[:10])} == {ref.key, key_of("result")}


def test_what_is_not_there_is_said_with_the_name_that_was_probably_meant(store, tmp_path):
    (tmp_path / "f").write_bytes(b"1")
    put_in(store, tmp_path / "f", "base")
    with pytest.raises(NotFound) as caught:
        resolve(store, "bsae")
    assert caught.value.hint == "did you mean 'base'?"


def test_a_beginning_of_several_digests_is_refused_and_a_very_short_one_means_nothing(store, monkeypatch):
    for number in range(40):
        commit(store, number, {"x": b"%d" % number})
    trees = [found(store, number).record.digest for number in range(40)]
    shared = next(one[:1] for one in trees if sum(other[0] == one[0] for other in trees) > 1)
    with pytest.raises(NotFound):
        resolve(store, shared)
    monkeypatch.setattr(prune, "_SHORTEST_PREFIX", 1)
    with pytest.raises(Ambiguous, match=r"is the prefix of \d+ digests"):
        resolve(store, shared)


def test_a_ref_whose_record_is_gone_says_so(store, tmp_path):
    (tmp_path / "f").write_bytes(b"1")
    ref = put_in(store, tmp_path / "f", "base").ref
    os.unlink(store.places.record(Digest(ref.key)))
    with pytest.raises(CorruptBytes, match="the tree of base is gone"):
        resolve(store, "base")
