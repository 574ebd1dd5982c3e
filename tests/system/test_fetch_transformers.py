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
try:
    AutoConfig.from_pretrained("org/tiny")
except OSError:
    print("not there", flush=True)
input()
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


def begin_to_load(cache: Path) -> subprocess.Popen[str]:
    """Start somebody who looks for it, says so if it is not there, and looks again once told to."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    env |= {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache / "home"), "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    argv = [sys.executable, "-W", "ignore", "-c", LOAD]
    return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_transformers_loads_offline_what_was_fetched(tmp_path):
    shell = Shell(tmp_path)
    cache = tmp_path / "cache"
    with begin_to_load(cache) as loading, FakeHub() as hub:
        assert loading.stdout is not None
        assert loading.stdout.readline() == "not there\n", "it must not be there before"
        hub.repository("org/tiny").commit(FILES)
        shell.env |= {"HF_HUB_CACHE": str(cache), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.endpoint}
        done = shell.stoker("fetch", "org/tiny")
        out, err = loading.communicate("\n", timeout=120)
    assert done.code == 0, done.err
    assert out.split("\n")[0] == "3 [0, 1, 0]", err
