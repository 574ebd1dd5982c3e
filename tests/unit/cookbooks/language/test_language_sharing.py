"""What adapters share on machines that nobody has seen yet: one word for one base, and the sizes of base and member."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.memory_needs import shared_by_lora
from stoker.cookbooks.language.recipes import lora
from stoker.cookbooks.language.train_lora import same_base
from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, InvalidArgs
from stoker.core.frozen import changed
from stoker.engine.recipe import MachineContext, surrounded_by
from stoker.engine.stage import SharedBase


def digest_of(path: str) -> str:
    return str(digest_bytes(Path(path).read_bytes()))


def args_of(base: Path | str, **more: Any) -> Any:
    checked, faults = lora.args.check({"base": str(base), **more}, owner="")
    assert not faults
    return lora.args.make(checked)


def shared(base: Path | str, **more: Any) -> SharedBase:
    return shared_by_lora(args_of(base, **more), digest_of)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", TinyShape(seed=3))


def word_of_attempt(base: Path, **given: Any) -> str:
    node = next(one for one in lora.compile(args_of(base, rank=4, **given)).nodes if one.stage.together is not None)
    settings = node.stage.args.make(node.args)
    digests = {"base_files": tuple(digest_of(path) for path in settings.base_files)}
    return same_base(settings, digests)


@pytest.mark.parametrize(
    "given",
    [{"gpus": 0}, {"gpus": 1}, {"dtype": "float32"}, {"dtype": "bfloat16"}, {"gpus": 1, "base_dtype": "nf4"}],
)
def test_the_word_at_submission_is_the_one_by_which_attempts_find_their_shared_process(
    base: Path, given: dict[str, Any]
):
    assert shared(base, **given).share_key == word_of_attempt(base, **given)


def test_who_may_run_anywhere_has_the_word_of_attempts_on_a_device_whatever_is_here(base: Path):
    # A worker tells the attempt what it was given: only there bases are looked for by their word.
    assert shared(base).share_key == word_of_attempt(base, gpus=1)
    with surrounded_by(changed(MachineContext(), count_gpus=lambda: 4)):
        assert shared(base).share_key == word_of_attempt(base)


def test_a_base_has_its_word_wherever_it_lies_and_another_one_has_another(base: Path, tmp_path: Path):
    copied = Path(shutil.copytree(base, tmp_path / "elsewhere"))
    other = write_base(tmp_path / "other", TinyShape(seed=4))
    assert shared(base).share_key == shared(copied, rank=2, lr=0.5).share_key
    assert len({shared(base).share_key, shared(other).share_key, shared(base, dtype="float32").share_key}) == 3


def test_a_larger_adapter_or_more_rows_take_more_beside_the_same_base(base: Path):
    config = json.loads((base / "config.json").read_text()) | {"vocab_size": 151_936}
    shutil.rmtree(base)
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config))
    small, ranked, rows = shared(base, rank=2), shared(base, rank=32), shared(base, rank=2, batch=64)
    assert len({one.base_bytes for one in (small, ranked, rows)}) == 1
    assert len({one.base_ram_bytes for one in (small, ranked, rows)}) == 1
    assert small.member_bytes < min(ranked.member_bytes, rows.member_bytes)
    assert small.member_ram_bytes < min(ranked.member_ram_bytes, rows.member_ram_bytes)


def test_a_machine_is_asked_for_no_less_than_a_run_here_would_take(base: Path):
    args = args_of(base, rank=4, gpus=1)
    node = next(one for one in lora.compile(args).nodes if one.stage.together is not None)
    told = shared(base, rank=4)
    assert told.base_bytes + told.member_bytes >= node.needs.vram_bytes
    assert told.base_bytes >= node.needs.base_bytes


def test_config_alone_says_how_large_a_base_is_that_is_fetched_elsewhere(base: Path, tmp_path: Path):
    (tmp_path / "seen").mkdir()
    shutil.copy(base / "config.json", tmp_path / "seen")
    whole, seen = shared(base), shared(tmp_path / "seen")
    sizes = ("base_bytes", "member_bytes", "base_ram_bytes", "member_ram_bytes")
    assert [getattr(seen, name) for name in sizes] == [getattr(whole, name) for name in sizes]


def test_a_base_that_is_elsewhere_is_judged_by_its_own_config_and_not_by_what_stands_in_its_place(tmp_path: Path):
    large = write_base(tmp_path / "large", TinyShape(hidden=256, heads=4, kv_heads=2))
    (tmp_path / "seen").mkdir()
    shutil.copy(large / "config.json", tmp_path / "seen")
    assert shared(tmp_path / "seen", rank=100).member_bytes
    with pytest.raises(InvalidArgs) as caught:
        shared(tmp_path / "seen", rank=200, max_seq_len=10_000)
    assert [one.where for one in caught.value.faults] == ["language/lora.max_seq_len", "language/lora.rank"]
    said = args_of("tiny", rank=100, max_seq_len=10_000, targets=["other"])
    with surrounded_by(MachineContext(stand_ins=frozenset({"base"}))):
        assert lora.compile(said).nodes
    with pytest.raises(InvalidArgs):
        lora.compile(said)


def test_what_is_no_base_is_refused(tmp_path: Path):
    with pytest.raises(BadInput):
        shared(tmp_path)
    for text in ("{", "[]", "[" * 100_000, '{"model_type": "other"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInput, match="this base can't be trained: its"):
            shared(tmp_path)


def test_people_are_told_how_large_a_base_is_and_whence(base: Path):
    assert shared(base).about == "base base, 423.3 KiB"
    assert shared("tiny").about == "base tiny, 423.3 KiB, bundled"


def test_weights_out_of_the_hubs_cache_are_held_against_the_sha256_they_are_named_by(tmp_path: Path):
    folder = write_base(tmp_path / "models--org--name" / "snapshots" / ("c" * 40))
    weights, blobs = folder / "model.safetensors", tmp_path / "models--org--name" / "blobs"
    blobs.mkdir()
    blob = blobs / digest_of(str(weights))
    weights.rename(blob)
    weights.symlink_to(blob)
    hub = changed(MachineContext(), hub_cache=lambda: str(tmp_path))
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("c" * 40)
    with surrounded_by(hub):
        assert shared("org/name").about == "base org/name, 423.3 KiB, sha256 ✓, from the hub's cache"
        content = bytearray(blob.read_bytes())
        content[-1] ^= 1
        blob.write_bytes(content)
        assert "sha256 ✗ (model.safetensors)" in shared("org/name").about


def test_a_base_in_four_bits_is_another_one_and_smaller(base: Path):
    four, whole = shared(base, base_dtype="nf4"), shared(base)
    assert four.share_key != whole.share_key
    assert four.base_bytes < whole.base_bytes
    assert four.member_bytes == whole.member_bytes
