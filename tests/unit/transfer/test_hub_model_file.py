"""A model and its tokenizer in a folder: what is tried, what is no failure, what need not come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.digests import Digest
from stoker.core.errors import Cancelled, HashMismatch, NotOnServer
from stoker.core.events import Kinds
from stoker.transfer.download.types import Status
from stoker.transfer.hub.single_files import TOKENIZERS, ModelFolder
from tests.servers.hub import Answer, Asked
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, scenes


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scenes(tmp_path) as one:
        yield one


def model(scene: Scene, **settings: object) -> ModelFolder:
    return ModelFolder(scene.hub(**settings), REPO, "main", str(scene.folder / "m"))


def with_tokenizers(scene: Scene, *names: str) -> None:
    scene.fake.repository("org/name").commit({**FILES, **dict.fromkeys(names, b"words")})


def warnings(scene: Scene) -> list[str]:
    return [str(event.fields["message"]) for event in scene.news if event.kind == Kinds.WARNING]


@pytest.mark.parametrize("there", [TOKENIZERS, TOKENIZERS[1:], ()])
def test_the_first_tokenizer_that_there_is_is_enough_and_none_is_fine(scene: Scene, there: tuple[str, ...]) -> None:
    with_tokenizers(scene, *there)
    fetched = model(scene).fetch_tokenizer()
    assert (fetched.path if fetched else "") == (str(scene.folder / "m" / there[0]) if there else "")
    assert warnings(scene) == []


def test_one_that_can_not_be_had_is_told_and_the_next_is_not_tried(scene: Scene) -> None:
    with_tokenizers(scene, *TOKENIZERS)

    def refuse(asked: Asked, answer: Answer) -> Answer:
        if TOKENIZERS[0] in asked.target:
            answer.status, answer.headers, answer.body = 403, {"X-Error-Code": "GatedRepo"}, b""
        return answer

    scene.fake.tamper = refuse
    assert model(scene).fetch_tokenizer() is None
    (told,) = warnings(scene)
    assert told.startswith("the model was downloaded, tokenizer.json was not: ")


def test_being_stopped_is_not_taken_for_a_missing_tokenizer(scene: Scene) -> None:
    scene.stop.ask(Cancelled("enough"))
    with pytest.raises(Cancelled):
        model(scene).fetch_tokenizer()


def test_bytes_that_the_cache_has_are_copied_and_belong_to_the_user(scene: Scene) -> None:
    scene.fetch()
    scene.downloads()
    fetched = model(scene).fetch("model.bin")
    assert fetched.status is Status.LINKED
    assert scene.downloads() == 0
    beside = {name for name in os.listdir(scene.folder / "m") if name != "model.bin"}
    assert beside == {"model.bin.etag"}
    assert model(scene).fetch("model.bin").status is Status.CACHED
    path = scene.folder / "m" / "model.bin"
    assert path.read_bytes() == LARGE
    path.write_bytes(b"mine")
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE


def test_another_digest_than_the_hub_or_the_cache_has_is_told_before_anything_is_put_there(scene: Scene) -> None:
    scene.fetch()
    scene.news.clear()
    for name in ("model.bin", "config.json"):
        with pytest.raises(HashMismatch):
            model(scene).fetch(name, sha256=Digest("0" * 64))
    assert scene.news == []
    assert not (scene.folder / "m").exists()


def test_a_damaged_blob_of_the_cache_is_not_copied(scene: Scene) -> None:
    scene.fetch()
    blob = (scene.snapshot / "model.bin").resolve()
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(LARGE)))
    assert model(scene).fetch("model.bin").status is Status.DOWNLOADED
    assert (scene.folder / "m" / "model.bin").read_bytes() == LARGE


def test_offline_only_the_folder_counts(scene: Scene) -> None:
    with pytest.raises(NotOnServer, match="not on this machine"):
        model(scene, offline=True).fetch("nested/deep/notes.md")
    model(scene).fetch("nested/deep/notes.md")
    scene.fake.asked.clear()
    fetched = model(scene, offline=True).fetch("nested/deep/notes.md")
    assert fetched.path == str(scene.folder / "m" / "notes.md")
    with pytest.raises(HashMismatch):
        model(scene, offline=True).fetch("nested/deep/notes.md", sha256=Digest("0" * 64))
    assert scene.fake.asked == []
