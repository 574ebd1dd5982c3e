from __future__ import annotations

import pytest

from stoker.core.text import LONGEST_NAME, is_job_name, is_node_name


@pytest.mark.parametrize("name", ["a", "resnet_50", "lr=0.1,n=3", "ärger", ".hidden", "x" * LONGEST_NAME])
def test_a_jobs_name_is_whatever_a_folder_can_be_called(name: str) -> None:
    assert is_job_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "last", "-x", "a b", "a/b", "a\n", "x" * (LONGEST_NAME + 1)])
def test_other_texts_are_no_jobs_name(name: str) -> None:
    assert not is_job_name(name)


@pytest.mark.parametrize("name", ["a", "lab1", "node-7.rack_2", "0", "x" * LONGEST_NAME])
def test_a_nodes_name_is_plain(name: str) -> None:
    assert is_node_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "ä", "a\n", "a/b", "a,b", "²", "x" * (LONGEST_NAME + 1)])
def test_other_texts_are_no_nodes_name(name: str) -> None:
    assert not is_node_name(name)
