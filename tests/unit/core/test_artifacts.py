import pytest

from stoker.core.digests import ArtifactRef, KindRef, Tree, TreeEntry, digest_bytes
from stoker.core.frozen import changed

README = TreeEntry("README", 5, digest_bytes(b"hello"))
PROGRAM = TreeEntry("bin/run", 3, digest_bytes(b"run"), executable=True)
LINK = TreeEntry("bin/start", 3, digest_bytes(b"run"), link_to="run")
TREE = Tree((README, PROGRAM, LINK))


def test_a_kind_is_shown_with_its_version():
    assert str(KindRef("table", 2)) == "table@2"


def test_the_digest_of_a_tree_never_changes():
    assert Tree(()).digest() == "0cb95b363505cf82186461c7c0f0fd8346e314d9c63a4c56a1b92add1048f2fe"
    assert TREE.digest() == "18e95b65ef7a7221d396d1716b1191019afd22ef9965a55b4d850b51833b0c78"


@pytest.mark.parametrize(
    "change",
    [
        {"path": "README.md"},
        {"size_bytes": 6},
        {"sha256": digest_bytes(b"hallo")},
        {"executable": True},
        {"link_to": "hello"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_an_entry_says_is_in_the_digest(change):
    assert Tree((changed(README, **change), PROGRAM, LINK)).digest() != TREE.digest()


def test_a_missing_or_an_additional_entry_changes_the_digest():
    assert len({Tree(TREE.entries[:count]).digest() for count in range(4)}) == 4


def test_a_tree_is_as_large_as_its_entries():
    assert TREE.size_bytes == 11
    assert Tree(()).size_bytes == 0


def test_two_references_are_equal_when_kind_and_digest_are():
    kind, digest = KindRef("table", 1), TREE.digest()
    assert ArtifactRef(kind, digest) == ArtifactRef(KindRef("table", 1), digest)
    assert ArtifactRef(kind, digest) != ArtifactRef(KindRef("table", 2), digest)
