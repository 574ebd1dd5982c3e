"""`stoker admin objects …` and `stoker serve --objects` as their user sees them, against SeaweedFS."""

from __future__ import annotations

import pytest

from tests.servers.seaweed import SECRET, SeaweedServer
from tests.system.shell import Shell


@pytest.fixture
def keys(seaweed: SeaweedServer) -> dict[str, str]:
    return seaweed.environment()


def test_a_bucket_is_checked_and_its_faults_are_told(shell: Shell, seaweed: SeaweedServer, keys: dict[str, str]):
    url = seaweed.new_url()
    done = shell.stoker("admin", "objects", "check", url, **keys)
    assert (done.code, done.out.count("ok    ")) == (0, 4), done.err
    done = shell.stoker("admin", "objects", "check", url, **{**keys, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert done.code == 11
    assert "hint: check the key" in done.err
    done = shell.stoker("admin", "objects", "check", url, **{**keys, "AWS_ACCESS_KEY_ID": ""})
    assert done.code == 2
    assert "AWS_ACCESS_KEY_ID" in done.err
    done = shell.stoker("admin", "objects", "check", "http://x", **keys)
    assert (done.code, "s3://BUCKET/PREFIX" in done.err) == (2, True)
    assert SECRET not in done.out + done.err


def test_objects_move_to_a_bucket_and_back_to_disk(shell: Shell, seaweed: SeaweedServer, keys: dict[str, str]):
    url = seaweed.new_url()
    assert "on disk" in shell.stoker("admin", "objects").out
    assert shell.stoker("admin", "objects", "move").code == 2
    (moved,) = shell.stoker("admin", "objects", "move", "--to", url, "--json", **keys).objects()
    assert (moved["objects"], moved["is_direct"]) == (url, True)
    assert f"{url}: machines transfer bytes directly" in shell.stoker("admin", "objects").out
    fake = {**keys, "STOKER_GPU_FAKE": "none"}
    done = shell.stoker("doctor", **fake)
    assert f"objects {url}" in done.out
    assert "may write; machines transfer bytes directly" in done.out
    for key, value, text in (
        ("AWS_SECRET_ACCESS_KEY", "wrong", "check the key"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "AWS_ENDPOINT_URL"),
    ):
        (found,) = shell.stoker("doctor", "--json", **{**fake, key: value}).objects()
        (check,) = (one for one in found["checks"] if one["name"] == f"objects {url}")
        assert check["verdict"] == "bad"
        assert text in check["message"] + check["hint"]
    refused = shell.stoker("serve", "--listen", "127.0.0.1:0", "--objects", seaweed.new_url(), **keys)
    assert refused.code == 32
    assert "stoker admin objects move --to" in refused.err
    done = shell.stoker("admin", "objects", "move", "--to", "disk", **keys)
    assert done.code == 0, done.err
    assert shell.stoker("admin", "objects", "--json").objects() == [{"objects": "", "is_direct": True}]
    adopted = shell.stoker("admin", "objects", "adopt", url, **keys)
    assert (adopted.code, "0 objects" in adopted.out) == (0, True), adopted.err
