from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import NotOnServer
from stoker.transfer.hub.client import find_files
from tests.unit.transfer.real_hubs import FILES, REPO, Scene, scenes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scenes(tmp_path) as one:
        yield one


def test_a_repository_means_all_its_files_at_the_commit_of_now(scene: Scene) -> None:
    found = find_files(scene.hub(), REPO, "main")
    assert found.labels == [f"{REPO}: {path}" for path in sorted(FILES)]
    assert (found.revision.asked, found.revision.commit) == ("main", scene.commit)


def test_names_and_patterns_choose_among_them(scene: Scene) -> None:
    found = find_files(scene.hub(), REPO, "main", names=["nested/"], exclude=["*.md"])
    assert [file.path for file in found.files] == ["nested/again.json"]


def test_a_server_without_listings_is_asked_by_name_and_may_tell_the_commit(scene: Scene) -> None:
    scene.fake.lists = False
    found = find_files(scene.hub(), REPO, "main", names=["config.json", "model.bin"])
    assert [file.path for file in found.files] == ["config.json", "model.bin"]
    assert found.revision.commit == scene.commit
    with pytest.raises(NotOnServer, match="lists no files") as refused:
        find_files(scene.hub(), REPO, "main")
    assert "name the files" in refused.value.hint
