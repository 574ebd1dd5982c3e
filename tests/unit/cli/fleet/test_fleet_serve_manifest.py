"""The manifest that a coordinator is given: its code and its data are taken in, as `stoker submit` would send them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.__main__ import run_command_line
from stoker.api.app_parts import AppSettings
from stoker.app import App
from stoker.cli.serve import GRAMMAR as SERVE
from stoker.coordinator.http.server_options import ReadManifest, ServeOptions
from stoker.core.digests import OpenEntry, Tree
from stoker.protocol.job_messages import Submission

MANIFEST = """
[[jobs]]
name = "train"
command = "python train.py"
data = { DATA = "corpus", BASE = "stoker:base" }
"""


class House(App):
    """One that hands out how a manifest is read, instead of serving."""

    read: ReadManifest

    def serving(self, options: ServeOptions, read_manifest: ReadManifest) -> House:  # type: ignore[override]
        House.read = staticmethod(read_manifest)
        return self

    def run(self, **_: object) -> int:
        return 0


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://desk:7717", [["train.py"], ["a.csv"], ["base.bin"]]),
        # Every machine is this one: it reads the folder where it lies.
        ("http://127.0.0.1:7717", [["train.py"], ["base.bin"]]),
    ],
    ids=["fleet", "loopback"],
)
def test_data_of_the_coordinators_manifest_is_taken_in_like_its_code(tmp_path: Path, url: str, kept: list[list[str]]):
    project = tmp_path / "project"
    (project / "corpus").mkdir(parents=True)
    (project / "train.py").write_text("print(1)")
    (project / "corpus" / "a.csv").write_text("1,2")
    (project / ".stokerignore").write_text("corpus\nbase.bin\n.stokerignore\nmanifest.toml\n")
    (project / "base.bin").write_bytes(b"weights")
    (project / "manifest.toml").write_text(MANIFEST)
    settings = AppSettings(home=str(tmp_path / "home"), folder=str(project), environment={"PATH": "/usr/bin:/bin"})

    def stoker(*words: str) -> int:
        return run_command_line(list(words), build=lambda: House(settings))

    taken: list[list[str]] = []

    def keep(tree: Tree, open_entry: OpenEntry) -> None:
        taken.append([entry.path for entry in tree.entries])
        for entry in tree.entries:
            with open_entry(entry) as file:
                assert len(file.read()) == entry.size_bytes

    assert stoker("store", "put", "base.bin", "--as", "base") == 0
    assert stoker("serve", "--manifest", "manifest.toml") == 0
    submission: Submission = House.read(str(project / "manifest.toml"), keep, url)
    assert taken == kept
    assert sorted(one.where for one in submission.jobs[0].inputs) == ["env:BASE", "env:DATA"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (next(one for one in SERVE.examples if "--launch" in one), 0),
        ("stoker serve --launch --listen [::]:7717", 0),
        ("stoker serve --launch --listen desk.example.org", 0),
        ("stoker serve --launch", 2),
        ("stoker serve --launch --listen :7717", 2),
        ("stoker serve --launch --listen 127.0.0.1", 2),
        ("stoker serve --launch --listen localhost:0", 2),
    ],
)
def test_pools_are_watched_beside_a_coordinator_that_listens_for_other_machines(
    tmp_path: Path, words: str, code: int
) -> None:
    settings = AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={"PATH": "/usr/bin:/bin"})
    assert run_command_line(words.split()[1:], build=lambda: House(settings)) == code
