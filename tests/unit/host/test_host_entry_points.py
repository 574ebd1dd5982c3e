from __future__ import annotations

import os
import os.path

import pytest

from stoker.host.import_watch import entry_point


def test_what_a_name_names_is_imported():
    assert entry_point("os.path:join") is os.path.join
    assert entry_point("os:path.join") is os.path.join


def test_what_is_not_there_is_told():
    with pytest.raises(ModuleNotFoundError):
        entry_point("nowhere_at_all:join")
    with pytest.raises(AttributeError):
        entry_point("os:nothing")
