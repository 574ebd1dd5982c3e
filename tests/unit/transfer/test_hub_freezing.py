from pathlib import Path

import pytest

from stoker.core.digests import digest_bytes
from stoker.core.errors import Refused
from stoker.transfer.hub.listing import Revision
from stoker.transfer.hub.single_files import freeze
from tests.unit.transfer.real_hubs import FILES, REPO, Scene, content, scenes


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path) as one:
        yield one


def test_a_frozen_repository_is_known_by_digests_and_its_branch_is_not_noted_as_there(scene: Scene):
    hub = scene.hub()
    revision = hub.resolve(REPO)
    listed = freeze(hub, REPO, revision, hub.files(REPO, revision.commit), workers=2)
    assert {one.id: one.sha256 for one in listed} == {f"{REPO}/{path}": digest_bytes(content(path)) for path in FILES}
    # Only the small files are in the cache: whoever follows the branch offline must not take them for all.
    assert hub.cache.read_ref(REPO, "main") == ""


def test_what_has_no_commits_can_not_be_frozen(scene: Scene):
    with pytest.raises(Refused, match="has no commits"):
        freeze(scene.hub(), REPO, Revision(asked="main", commit=""), (), workers=1)
