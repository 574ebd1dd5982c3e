"""What adapters share on machines that nobody has seen yet: one word for one base, and the sizes of base and member."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.recipes import lora
from stoker.cookbooks.language.sharing import shared_by_lora
from stoker.cookbooks.language.train_lora import same_base
from stoker.model.digests import digest_bytes
from stoker.model.errors import BadInput
from stoker.plan.sharing import SharedBase


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


def test_the_word_at_submission_is_the_one_by_which_attempts_find_their_company(base: Path):
    args = args_of(base, rank=4)
    node = next(one for one in lora.compile(args).nodes if one.stage.together is not None)
    settings = node.stage.args.make(node.args)
    digests = {"base_files": tuple(digest_of(path) for path in settings.base_files)}
    assert shared(base).word == same_base(settings, digests)


def test_a_base_has_its_word_wherever_it_lies_and_another_one_has_another(base: Path, tmp_path: Path):
    copied = Path(shutil.copytree(base, tmp_path / "elsewhere"))
    other = write_base(tmp_path / "other", TinyShape(seed=4))
    assert shared(base).word == shared(copied, rank=2, lr=0.5).word
    assert len({shared(base).word, shared(other).word, shared(base, dtype="float32").word}) == 3


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


def test_what_is_no_base_is_refused(tmp_path: Path):
    with pytest.raises(BadInput):
        shared(tmp_path)
