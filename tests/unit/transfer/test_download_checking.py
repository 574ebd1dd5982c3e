"""Files held against receipts and lists, every byte read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import LocalFile
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.receipts import Receipts, check_file, check_listed, check_receipt, receipt_of
from stoker.transfer.download.types import FetchedFile, Status

BYTES = b"weights"


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(str(tmp_path / "receipts"))


def put(receipts: Receipts, path: Path, data: bytes = BYTES) -> Path:
    """Put a file somewhere as a download does, with its receipt."""
    path.write_bytes(data)
    fetched = FetchedFile(path=str(path), status=Status.DOWNLOADED, size_bytes=len(data), sha256=digest_bytes(data))
    receipts.keep([receipt_of(fetched, label="a model", ended_s=0.0, version="1")])
    return path


def listed(data: bytes = BYTES) -> LockedFile:
    return LockedFile(id="m", sha256=digest_bytes(data), size_bytes=len(data), urls=("https://h.example/m",))


def test_a_file_is_known_by_its_place_and_where_it_was_moved_by_its_digest(tmp_path: Path, receipts: Receipts) -> None:
    path = put(receipts, tmp_path / "model")
    assert check_file(str(path), receipts).is_good
    moved = path.rename(tmp_path / "moved")
    assert check_file(str(moved), receipts).is_good
    assert check_file(str(path), receipts).differs == (f"file not found: {path}",)


@pytest.mark.parametrize(
    ("data", "said"), [(b"weighty", "its sha256 is"), (b"weight", "it has 6 bytes"), (b"", "0 bytes")]
)
def test_a_file_that_changed_says_how(tmp_path: Path, receipts: Receipts, data: bytes, said: str) -> None:
    path = put(receipts, tmp_path / "model")
    path.write_bytes(data)
    (difference,) = check_file(str(path), receipts).differs
    assert said in difference


def test_what_nobody_fetched_is_not_vouched_for(tmp_path: Path, receipts: Receipts) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    assert "no receipt: not downloaded by Stoker" in check_file(str(tmp_path / "mine"), receipts).differs[0]
    assert not check_file(str(tmp_path / "mine"), receipts).is_known
    with pytest.raises(LocalFile, match="no such file") as absent:
        check_file(str(tmp_path / "nothing"), receipts)
    assert "check the path" in absent.value.hint
    with pytest.raises(LocalFile, match="this is a folder") as folder:
        check_file(str(tmp_path), receipts)
    assert "one by one" in folder.value.hint


def test_a_receipt_that_was_edited_vouches_for_nothing(tmp_path: Path, receipts: Receipts) -> None:
    path = put(receipts, tmp_path / "model")
    (at_place,), (at_digest,) = ((tmp_path / "receipts" / name).iterdir() for name in ("places", "digests"))
    # One file under two names, written through: both say the same.
    at_digest.write_text(at_digest.read_text().replace("a model", "a better model"))
    assert at_place.read_text() == at_digest.read_text()
    assert "does not match its own checksum" in check_file(str(path), receipts).differs[0]
    assert "does not match its own checksum" in check_receipt(str(at_digest)).differs[0]
    moved = path.rename(tmp_path / "moved")
    assert "does not match its own checksum" in check_file(str(moved), receipts).differs[0]


def test_a_listed_file_is_good_wherever_its_bytes_lie(tmp_path: Path, receipts: Receipts) -> None:
    def check(*places: Path) -> tuple[str, tuple[str, ...]]:
        (found,) = check_listed([listed()], places=lambda _: map(str, places), receipts=receipts)
        return found.path, found.differs

    nowhere, stale = tmp_path / "nowhere", tmp_path / "stale"
    stale.write_bytes(b"weighty")
    assert check(nowhere) == (str(nowhere), ("not on this disk",))
    path, (difference,) = check(nowhere, stale)
    assert path == str(stale)
    assert "its sha256 is" in difference
    elsewhere = put(receipts, tmp_path / "elsewhere")
    assert check(nowhere, stale) == (str(elsewhere), ())
    elsewhere.write_bytes(b"")
    assert check(nowhere)[1] == ("it has 0 bytes, the list says 7",)
