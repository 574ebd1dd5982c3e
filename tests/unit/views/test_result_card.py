from __future__ import annotations

import pytest

from stoker.views.result_card import LARGEST_CARD_BYTES, card_path, card_view


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["README.md", "sub/model-card.md", "deep/er/model-card.md"], "sub/model-card.md"),
        (["b/README.md", "a/readme.md"], "a/readme.md"),
        (["MODEL_CARD.md"], "MODEL_CARD.md"),
        (["model-card.md.bin", "weights"], ""),
        ([], ""),
    ],
)
def test_the_card_is_chosen_by_its_name_and_then_by_its_place(paths: list[str], found: str):
    assert card_path(paths) == found


def test_bytes_that_are_no_text_are_shown_as_far_as_they_are():
    assert card_view("job", "d", "README.md", b"caf\xe9").text == "caf\ufffd"
    assert card_view("job", "d", "README.md", b" \n").note == "README.md is empty"
    cut = card_view("job", "d", "README.md", b"x" * (LARGEST_CARD_BYTES + 1))
    assert (cut.is_cut, len(cut.text)) == (True, LARGEST_CARD_BYTES)
