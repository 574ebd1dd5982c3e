"""Configuration files as files: missing, unreadable, too large, in no language of ours."""

from __future__ import annotations

import os

import pytest

from stoker.config.positions import LARGEST_BYTES
from stoker.core.errors import InvalidConfig, LocalFile, NoPermission
from tests.unit.config.composing import Desk


def test_a_file_that_is_not_there_is_a_local_file_error_with_the_nearest_name(desk: Desk):
    desk.write(baseline="a: 1")
    with pytest.raises(LocalFile) as caught:
        desk.compose(files=["baselin.yaml"])
    assert caught.value.exit_code == 16
    assert "baselin.yaml" in str(caught.value)
    assert "baseline.yaml" in caught.value.hint


def test_a_file_that_is_like_no_other_brings_a_list_of_those_there(desk: Desk):
    desk.write(cluster="a: 1", two_toml="a = 1")
    with pytest.raises(LocalFile) as caught:
        # Alike by its suffix alone.
        desk.compose(files=["base.yaml"])
    assert caught.value.hint == "there are: cluster.yaml, two.toml"


def test_a_folder_is_not_a_file(desk: Desk):
    (desk.folder / "conf.yaml").mkdir()
    with pytest.raises(LocalFile, match="folder"):
        desk.compose(files=["conf.yaml"])


def test_a_suffix_that_is_not_ours_is_refused(desk: Desk):
    (desk.folder / "conf.json").write_text("{}")
    with pytest.raises(LocalFile, match="YAML or TOML") as caught:
        desk.compose(files=["conf.json"])
    assert ".yaml" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(desk: Desk):
    desk.write(config="a: 1")
    (desk.folder / "config.yaml").chmod(0)
    with pytest.raises(NoPermission):
        desk.compose()


def test_a_file_that_is_too_large_is_refused(desk: Desk):
    with (desk.folder / "config.yaml").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(LocalFile, match="MiB"):
        desk.compose()


@pytest.mark.parametrize("name", ["config.yaml", "config.toml"])
def test_bytes_that_are_not_utf_8_are_a_fault_with_their_place(desk: Desk, name: str):
    (desk.folder / name).write_bytes("a: 1\nü: ".encode() + b"\xff\n")
    fault = desk.fault(files=[name])
    assert fault.where == f"{name}:2:4"
    assert "0xff" in fault.message
    assert fault.shown.endswith("   ^")


@pytest.mark.parametrize("text", ["a: 1\n", "a: 1\r\nb: 2\r\n"])
def test_a_byte_order_mark_and_foreign_line_ends_do_not_matter(desk: Desk, text: str):
    (desk.folder / "config.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert desk.values()["a"] == 1


@pytest.mark.parametrize(("name", "text"), [("config.yaml", "- 1\n"), ("config.yaml", "just text\n")])
def test_a_file_that_is_not_a_map_is_a_fault(desk: Desk, name: str, text: str):
    (desk.folder / name).write_text(text)
    assert "map" in desk.fault(files=[name]).message


def test_yaml_and_toml_mix(desk: Desk):
    desk.write(config="a: 1\nm: {x: 1, y: 1}\n", other_toml="b = 2\n[m]\ny = 2\n")
    assert desk.values(files=["config.yaml", "other.toml"]) == {"a": 1, "m": {"x": 1, "y": 2}, "b": 2}


def test_faults_of_several_files_are_told_together(desk: Desk):
    desk.write(config="a: [1\n", other_toml="b = \n", third="a: 1\na: 2\n")
    found = desk.faults(files=["config.yaml", "other.toml", "third.yaml"])
    assert [fault.where.partition(":")[0] for fault in found] == ["config.yaml", "other.toml", "third.yaml"]


def test_a_file_is_called_what_it_was_typed_as(desk: Desk):
    desk.write(conf__config="a: x\na: y\n")
    assert desk.fault(files=["conf/../conf/config.yaml"]).where == "conf/../conf/config.yaml:2:1"
    absolute = str(desk.folder / "conf" / "config.yaml")
    assert desk.fault(files=[absolute]).where == f"{absolute}:2:1"


def test_many_faults_of_one_file_do_not_take_forever(desk: Desk):
    from tests.unit.config.composing import closed, whole

    desk.write(config="".join(f"key_{n}: 1\n" for n in range(5_000)))
    with pytest.raises(InvalidConfig) as caught:
        desk.compose(schema=closed(**{f"leaf_{n}": whole(1) for n in range(300)}))
    assert len(caught.value.faults) == 5_000
