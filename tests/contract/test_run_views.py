"""What screens show of one run: the same from a job's folder on this machine and from its mirror at a coordinator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.api.local_monitor import LocalMonitor
from stoker.api.monitor import SeriesQuery
from stoker.app.app import App
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.errors import NotFound
from stoker.core.job import job_id
from stoker.core.jsontext import dumps
from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.jobs.log_text import LONGEST_LINE_BYTES
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Finish
from stoker.protocol.screen_messages import LogRequest
from stoker.protocol.tree_messages import head
from stoker.store.archives.archive_members import listing_bytes
from stoker.transfer.mirror import AttemptFolderSync
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.hand import Hand, said
from tests.unit.jobs.conftest import Office


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def frame(name: str, *values: float, first: int = 0, at_s: float = 10.0) -> bytes:
    return encode_frame([MetricRow(first + at, at_s + at, name, value) for at, value in enumerate(values)])


def test_metrics_of_a_mirrored_run_over_steps(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    hand = Hand(client)
    assert client.series("train").series == ()
    grant = hand.start()
    token = grant.token()
    data = frame("loss", 3.0, math.nan, 1.0, 2.0) + frame("<b>acc,\x1b[31m", 0.5)
    client.put_file(token, "metrics/run.skm", data, offset=0)
    client.put_file(token, "metrics/eval.program.skm", frame("speed", 7.0), offset=0)
    view = client.series("train", points=100)
    assert view.job == "train"
    assert sorted(view.names) == ["<b>acc,\\x1b[31m", "loss", "speed"]
    (loss,) = [one for one in view.series if one.name == "loss"]
    assert (loss.name, loss.steps, loss.total) == ("loss", (0, 1, 2, 3), 4)
    assert loss.values[0] == 3.0
    assert math.isnan(loss.values[1])
    assert loss.times_s == (10.0, 11.0, 12.0, 13.0)
    assert (loss.best_step, loss.best, loss.is_lower_better) == (2, 1.0, True)
    assert (loss.last_step, loss.last, loss.source) == (3, 2.0, "reported")
    # Control characters of a name are not passed on, and a name with a comma can be asked for.
    (odd,) = [name for name in view.names if "acc" in name]
    assert [one.name for one in client.series("train", [odd]).series] == [odd]
    short = client.series("train", ["loss", "missing"], first=2, last=2, attempt=1)
    assert [(one.name, one.steps) for one in short.series] == [("loss", (2,))]
    with pytest.raises(NotFound, match="has no attempt 7"):
        client.series("train", attempt=7)
    with pytest.raises(NotFound):
        client.series("missing")


def test_levels_of_a_mirrored_file_grow_with_it(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    grant = Hand(client).start()
    data = b"".join(frame("loss", *([1.0] * 4000), first=at) for at in range(0, 40_000, 4000))
    client.put_file(grant.token(), "metrics/run.skm", data[:300_000], offset=0)
    folder = Path(fleet.keeping.attempt_files.folder_of(grant.job, 1), "metrics")
    assert [path.name for path in folder.iterdir()] == ["run.skm"]
    client.put_file(grant.token(), "metrics/run.skm", data[300_000:], offset=300_000)
    assert sorted(path.name for path in folder.iterdir()) == [".run.skm.levels", "run.skm"]
    assert [file.path for file in client.files("train").files] == ["metrics/run.skm"]
    assert client.series("train").series[0].total == 40_000


def test_stages_of_a_mirrored_run(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    assert client.stages("train").nodes == ()
    grant = Hand(client).start()
    stages = {"v": 1, "stages": [{"node": "a", "stage": "s"}, {"node": "b", "needs": ["a"]}, 7, {"stage": "none"}]}
    client.put_file(grant.token(), "stages.json", dumps(stages).encode(), offset=0)
    assert [(one.name, one.ending) for one in client.stages("train").nodes] == [("a", "waiting"), ("b", "waiting")]
    began = dumps({"kind": "stage_begin", "node": "a", "ts": 1.0, "why": "new"}).encode() + b"\n"
    client.put_file(grant.token(), "status.jsonl", began + b"garbage\n", offset=0)
    graph = client.stages("train", attempt=1)
    assert [(one.name, one.ending, one.layer) for one in graph.nodes] == [("a", "running", 0), ("b", "waiting", 1)]
    assert graph.edges == ((0, 1),)


def test_a_line_of_fifty_megabytes_is_cut_and_does_not_hide_the_next(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    hand = Hand(client)
    grant = hand.start()
    hand.put_story(grant, "first")
    log = next(Path(fleet.keeping.attempt_files.folder_of(grant.job, 1)).rglob("*.log"))
    with log.open("ab") as file:
        file.write(b"x" * 50_000_000 + b"\nlast\n")
    page = client.log("train")
    assert [(len(one.text), one.is_cut) for one in page.lines[-2:]] == [(LONGEST_LINE_BYTES, True), (4, False)]
    assert [one.text for one in client.log("train", LogRequest(search="LAST")).lines] == ["last"]


def test_lines_of_a_mirrored_run(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    assert client.log("train").lines == ()
    hand = Hand(client)
    grant = hand.start()
    hand.put_story(grant, "one", "two <b>", "three")
    page = client.log("train", LogRequest(limit=2))
    assert [(one.number, one.text, one.node) for one in page.lines] == [(1, "two <b>", "run"), (2, "three", "run")]
    assert (page.total, page.is_over, page.nodes, page.matches) == (3, False, ("run",), None)
    assert [one.text for one in client.log("train", LogRequest(node="run", start=0, search="TWO")).lines] == ["two <b>"]
    hand.finish(grant)
    assert client.log("train", LogRequest(attempt=1)).is_over
    with pytest.raises(NotFound, match="no stage 'rum' has a log"):
        client.log("train", LogRequest(node="rum"))


def test_a_run_and_its_mirror_look_the_same(fleet: Fleet, tmp_path: Path) -> None:
    office = Office(tmp_path / "office")
    done = office.run("test/blobs", name="train")
    metrics = Path(done.folder.metrics_folder, "blobs.skm")
    metrics.write_bytes(frame("loss", 2.0, 1.0, math.inf))
    Path(done.folder.log_folder, "blobs.log").write_bytes(b"first\n\x1b[1msecond\n")
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    grant = Hand(client).start()
    mirror = AttemptFolderSync(done.folder.path, grant.token(), client, clock=SystemClock())
    assert mirror.drain(SystemClock().monotonic_s() + 60.0)
    app = App(AppSettings(home=str(tmp_path / "office"), folder=str(tmp_path), environment={}))
    app.__dict__["store"] = office.lab.store
    local = LocalMonitor(app)
    assert local.series("train", SeriesQuery()).series == client.series("train").series
    assert local.stages("train") == client.stages("train")
    assert [node.ending for node in client.stages("train").nodes] == ["ran"] * len(client.stages("train").nodes)
    here, there = local.log("train", LogRequest()), client.log("train")
    assert (here.lines, here.total, here.nodes) == (there.lines, there.total, there.nodes)
    assert [line.text for line in here.lines][-2:] == ["first", "second"]
    office.lab.close()


def packed(client: FleetClient, **files: bytes) -> str:
    """Store a tree at the coordinator."""
    digests = {name: Digest(sha256(data).hexdigest()) for name, data in files.items()}
    entries = [TreeEntry(name.replace("_", "."), len(data), digests[name]) for name, data in files.items()]
    tree = Tree(tuple(sorted(entries, key=lambda entry: entry.path)))
    client.want_tree(tree.digest(), files=len(files), size_bytes=tree.size_bytes)
    client.send_pack(b"".join(head(digests[name], len(data)) + data for name, data in files.items()))
    client.keep_tree(tree.digest(), listing_bytes(tree))
    return tree.digest()


def test_configuration_and_code_of_a_submitted_job(fleet: Fleet) -> None:
    client = fleet.client()
    first = packed(client, train_py=b"lr = 1\n", same_py=b"")
    second = packed(client, train_py=b"lr = 2\n", same_py=b"")
    args = {"argv": ["python"], "env": {"TOKEN": "hidden"}, "params": {"lr": 0.1}}
    ids: list[str] = []
    for seed, tree in enumerate((first, second)):
        identity = {"seed": seed}
        id = job_id(recipe="command", schema_version=1, args=identity)
        ids.append(id)
        one = order("train", recipe="command", id=id, args={**args, **identity}, identity=identity, code_tree=tree)
        client.submit(Submission(jobs=(one,)))
    config = client.config("train")
    settings = {one.path: (one.value, one.origin) for one in config.settings}
    assert settings["lr"] == (0.1, "as submitted")
    assert "hidden" not in str(config)
    diff = client.code_diff("train")
    assert (diff.files, diff.parent) == (("train.py",), "train")
    assert "-lr = 1\n+lr = 2" in diff.text
    assert client.code_diff("train", "train").note == "the code is the same"
    assert client.code_diff(ids[0]).note == "no earlier job has this name"


def test_the_model_card_of_a_result_is_its_text_or_a_reason(fleet: Fleet) -> None:
    client = fleet.client()
    client.submit(Submission(jobs=(order("card"), order("none"), order("long"))))
    hand = Hand(client)
    assert client.card("card").note == "there is no result yet"
    files: dict[str, dict[str, bytes]] = {
        "card": {"model-card_md": b"# A <b>card</b>\n", "readme_md": b"no", "model_bin": b"0"},
        "none": {"model_bin": b"1"},
        "long": {"readme_md": b"x" * 300_000},
    }
    results = {name: packed(client, **some) for name, some in files.items()}
    for name, tree in results.items():
        grant = hand.start()
        done = Finish(**said(grant), tree=tree, size_bytes=sum(map(len, files[name].values())))
        client.write(grant.job, done)
    card = client.card("card")
    assert (card.path, card.text, card.is_cut, card.digest) == (
        "model-card.md", "# A <b>card</b>\n", False, results["card"],
    )  # fmt: skip
    assert client.card("none").note == "the result has no model-card.md and no README.md"
    long = client.card("long")
    assert (long.path, len(long.text), long.is_cut) == ("readme.md", 256 * 1024, True)
    with pytest.raises(NotFound):
        client.card("missing")
    (model,) = client.models(digest=results["card"][:12]).models
    assert model.name == "card"
    assert [one.name for one in client.models(job=model.job).models] == ["card"]
    assert client.models(digest="0" * 64).models == ()
