"""What `stoker fetch` brought is found by the real transformers, offline, by the repository's name alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.servers.hub import FakeHub
from tests.system.shell import Shell

LOAD = """
from transformers import AutoConfig, AutoTokenizer
print(AutoConfig.from_pretrained("org/tiny").n_layer, AutoTokenizer.from_pretrained("org/tiny").encode("a b a"))
"""
CONFIG: dict[str, object] = {"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 8, "vocab_size": 3}
TOKENIZER: dict[str, object] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": json.dumps(TOKENIZER).encode(),
    "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}).encode(),
}


def load(cache: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    env |= {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache / "home"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_transformers_loads_offline_what_was_fetched(tmp_path):
    shell = Shell(tmp_path)
    cache = tmp_path / "cache"
    assert load(cache).returncode != 0, "it must not be there before"
    with FakeHub() as hub:
        hub.repository("org/tiny").commit(FILES)
        shell.env |= {"HF_HUB_CACHE": str(cache), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.endpoint}
        done = shell.stoker("fetch", "org/tiny")
    assert done.code == 0, done.err
    loaded = load(cache)
    assert loaded.stdout.split("\n")[0] == "3 [0, 1, 0]", loaded.stderr
