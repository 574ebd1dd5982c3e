"""Faults that were found by attack and review, each held down by a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import InvalidInput
from stoker.engine.key_leases import KeyLeases
from stoker.store.local_store import LocalStore

KEY = Digest("a" * 64)


def test_giving_back_a_lease_that_vanished_is_no_error(tmp_path: Path) -> None:
    book = KeyLeases(str(tmp_path), clock=FakeClock())
    book.take(KEY)
    os.unlink(tmp_path / KEY)
    book.give_back(KEY)
    assert book.held() == []


def test_a_lease_that_protects_nobody_is_dropped_without_writing(tmp_path: Path) -> None:
    book = KeyLeases(str(tmp_path), clock=FakeClock())
    (tmp_path / KEY).write_bytes(b"")
    assert book.drop_dead(KEY)
    assert not (tmp_path / KEY).exists()
    book.take(KEY)
    other = KeyLeases(str(tmp_path), clock=FakeClock())
    assert other.drop_dead(KEY), "it is our own process: its lease is ours to drop"


@pytest.mark.parametrize("is_link", [True, False])
def test_a_staging_folder_that_was_replaced_is_refused(tmp_path: Path, *, is_link: bool) -> None:
    store = LocalStore(str(tmp_path / "store"), clock=FakeClock())
    store.open()
    staging = store.new_staging("x")
    os.rmdir(staging)
    if is_link:
        os.symlink(tmp_path, staging)
    with pytest.raises(InvalidInput, match="was removed or replaced"):
        store.take_in(staging)
