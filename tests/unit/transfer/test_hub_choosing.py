import pytest

from stoker.core.errors import BadInput, NotOnServer
from stoker.transfer.hub.listing import RepoFile, choose

PATHS = ["README.md", "a/b/model-1.bin", "a/model-2.bin", "config.json", "weird[1].txt"]
FILES = [RepoFile(path=path) for path in PATHS]


def chosen(**how: list[str]) -> list[str]:
    return [file.path for file in choose(FILES, **how)]


def test_without_a_wish_everything_is_meant():
    assert chosen() == PATHS


def test_a_name_is_one_file_even_if_it_looks_like_a_pattern():
    assert chosen(names=["config.json", "weird[1].txt"]) == ["config.json", "weird[1].txt"]


def test_a_name_with_a_slash_at_its_end_is_a_folder():
    assert chosen(names=["a/"]) == ["a/b/model-1.bin", "a/model-2.bin"]


def test_a_star_also_matches_slashes_as_it_does_in_the_client():
    assert chosen(include=["a/*.bin"]) == ["a/b/model-1.bin", "a/model-2.bin"]
    assert chosen(include=["*.bin", "*.json"], exclude=["*-1*"]) == ["a/model-2.bin", "config.json"]


def test_case_counts():
    with pytest.raises(NotOnServer):
        chosen(include=["readme*"])


def test_every_wish_that_nothing_fits_is_told_with_a_guess():
    with pytest.raises(NotOnServer, match=r"'confg.json', '\*.gguf'") as caught:
        chosen(names=["confg.json"], include=["*.gguf"])
    assert "config.json" in caught.value.hint


def test_excluding_everything_is_no_success():
    with pytest.raises(BadInput, match="no file is selected"):
        chosen(exclude=["*"])


def test_an_empty_repository_has_nothing_to_choose():
    assert choose([]) == ()
