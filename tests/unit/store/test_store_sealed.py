from __future__ import annotations

import pytest

from stoker.core.jsontext import dumps, loads
from stoker.store.records import BrokenSeal, seal, unseal

BODY = {
    "name": "ünï",
    "bytes": 3,
    "at_s": 0.1,
    "$tag": [None, True],
    "deep": {"b": 1, "a": "\udcff"},
    "nan": float("inf"),
}


def test_what_is_sealed_comes_back_and_is_one_line() -> None:
    data = seal("ref/1", BODY)
    assert data.count(b"\n") == 1
    assert data.startswith(b'{"sealed":"ref/1",')
    assert unseal("ref/1", data) == BODY
    assert unseal("ref/1", seal("ref/1", {})) == {}


def test_a_text_that_was_laid_out_anew_is_still_sealed() -> None:
    data = seal("ref/1", BODY, indent=2)
    assert data.count(b"\n") > 5
    assert unseal("ref/1", data) == BODY
    assert unseal("ref/1", f"{dumps(loads(data), sort_keys=True)}\n".encode()) == BODY


def test_one_sort_or_format_is_never_taken_for_another() -> None:
    with pytest.raises(BrokenSeal, match="is sealed as 'ref/2', not as 'ref/1'"):
        unseal("ref/1", seal("ref/2", BODY))
    with pytest.raises(BrokenSeal, match="does not match its check"):
        unseal("ref/1", seal("upload/1", BODY).replace(b"upload/1", b"ref/1"))


def test_every_change_of_a_byte_and_every_cut_is_noticed() -> None:
    data = seal("ref/1", {"name": "base", "bytes": 12, "key": "ab"})
    for at in range(len(data)):
        with pytest.raises(BrokenSeal):
            unseal("ref/1", data[:at])
        with pytest.raises(BrokenSeal):
            unseal("ref/1", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"[]\n", b"3\n", b"{}\n", b"\xff\n", b'{"sealed":"ref/1"}\n', b"[" * 100_000 + b"\n"]
)
def test_what_was_never_sealed_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenSeal):
        unseal("ref/1", data)
