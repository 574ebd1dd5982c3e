from __future__ import annotations

import pytest

from stoker.transfer.download.partial import SUFFIXES, beside, companion_clashes


def test_companions_are_named_by_appending():
    assert beside("model.gguf", ".part") == "model.gguf.part"
    assert beside("model.bin", ".part") != beside("model.gguf", ".part")


@pytest.mark.parametrize("leaf", ["x" * 255, "é" * 127, "x" * 160])
def test_a_companion_of_a_long_name_is_no_longer_than_a_name_may_be(leaf):
    for suffix in (*SUFFIXES, ".part.00000000-00000000-00000000-1234567890-12345678901234567890.json"):
        name = beside(leaf, suffix)
        assert len(name.encode()) <= 255
        assert name.endswith(suffix)


def test_companions_of_two_long_names_are_two():
    assert beside("x" * 254 + "a", ".part") != beside("x" * 254 + "b", ".part")


def test_names_that_are_companions_of_others_are_found():
    names = ["a/model.bin", "a/model.bin.PART", "b/model.bin.part", "c", "c.etag", "d"]
    assert companion_clashes(names) == (("a/model.bin", "a/model.bin.PART"), ("c", "c.etag"))
