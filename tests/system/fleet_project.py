"""A project as somebody has it on a laptop: a git repository with changes, a lock, data elsewhere, a sweep."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from pathlib import Path

from tests.unit.worker.tiny_wheels import locked_project, wheel

TRAIN = """
import hashlib, json, os, pathlib, socket, sys, time
import alpha, changed, stoker_trainer as t

lr, place, gate = sys.argv[1], pathlib.Path(os.environ["DATA"]), pathlib.Path(os.environ["HOME"], "go")
whole = hashlib.sha256()
for path in sorted(place.rglob("*")):
    if path.is_file():
        whole.update(path.relative_to(place).as_posix().encode() + path.read_bytes())
saved = t.resume()
first = int(pathlib.Path(saved).read_text()) if saved else 0
print("begins at", first, "with", os.environ["API_KEY"], flush=True)
for step in range(first, 9):
    t.step(step, of=9, loss=1 / (step + 1))
    if step == 4:
        pathlib.Path("ckpt").write_text("5")
        t.saved("ckpt", step=step)
while not gate.exists():
    time.sleep(0.02)
os.makedirs("runs")
told = {"lr": lr, "machine": socket.gethostname(), "first": first, "data": whole.hexdigest(),
        "alpha": alpha.VERSION, "changed": changed.VALUE, "prefix": sys.prefix, "folder": os.getcwd(),
        "knows": hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()}
pathlib.Path("runs", "result.json").write_text(json.dumps(told))
t.done(loss=float(lr))
"""
MANIFEST = """
[[jobs]]
name    = "study"
command = "python train.py {lr}"
sweep   = { lr = [0.1, 0.2, 0.3] }
data    = { DATA = "../data" }
outputs = ["runs/"]
env     = "uv.lock"
secrets = ["API_KEY"]
min_ram_gib = 0.25
on_partition = "keep"
"""
_WHO = {
    **{f"GIT_{who}_{what}": "anna" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PATH": os.defpath,
}


def make_project(folder: Path, *, manifest: str = MANIFEST, asset_bytes: int = 0) -> None:
    """Write it: everything is committed, and then one module changed."""
    if asset_bytes:
        folder.joinpath("asset.bin").write_bytes(random.Random(5).randbytes(asset_bytes))
    locked_project(str(folder), [wheel(str(folder / "wheels"), "alpha")])
    (folder / "train.py").write_text(TRAIN)
    (folder / "changed.py").write_text("VALUE = 'committed'\n")
    (folder / "manifest.toml").write_text(manifest)
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "all of it")
    (folder / "changed.py").write_text("VALUE = 'changed since'\n")
    (folder / "notes.txt").write_text("of nobody's business\n")


def make_data(folder: Path, *, files: int, size_bytes: int) -> str:
    """Write data that nothing compresses; give what the program makes of it."""
    chance, whole = random.Random(7), hashlib.sha256()
    (folder / "deep").mkdir(parents=True)
    for number in range(files):
        name = f"deep/{number:03}" if number % 2 else f"{number:03}"
        (folder / name).write_bytes(chance.randbytes(size_bytes))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            whole.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()


def commit_of(folder: Path) -> str:
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], env=_WHO, check=True, capture_output=True, text=True)
    return done.stdout.strip()
