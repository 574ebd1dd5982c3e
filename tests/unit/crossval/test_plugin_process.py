from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker.core.errors import (
    HashMismatch,
    LocalFile,
    PluginCrashed,
    PluginFailed,
    PluginInvalid,
    PluginNotFinite,
    PluginTimeout,
    SilentFallback,
)
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.plugin_messages import LoadRequest, fallbacks, require_promised
from stoker.crossval.plugin_process import Plugin, PluginTimeouts
from stoker.crossval.runtimes import RuntimeChoice, plugin_environment
from stoker.host.identity import read_row

FAKE = str(Path(__file__).parents[2] / "fakes" / "plugin.py")
BRIEF = PluginTimeouts(hello_s=5.0, load_s=5.0, line_s=0.3)
MODEL = LoadRequest(model="m")


def _plugin(fault: str = "", *, timeouts: PluginTimeouts = BRIEF, env: dict[str, str] | None = None) -> Plugin:
    argv = (sys.executable, "-I", "-S", FAKE, *([fault] if fault else []))
    return Plugin(PluginCommand(label="fake", argv=argv, env=env or {}), timeouts=timeouts)


def _use(plugin: Plugin) -> None:
    """Everything that a comparison does."""
    plugin.load(MODEL)
    plugin.tokenize("ba")
    rows = [row for row in plugin.logits([1, 0, 1], layers=True) if row.layer is not None]
    plugin.replay(0, b"".join(bytes(row.values) for row in rows))


def test_a_plug_in_says_what_it_is_and_returns_its_numbers():
    with _plugin() as plugin:
        info = plugin.hello()
        assert (info.name, info.can) == ("fake", ("tokenize", "logits", "layers", "replay"))
        loaded = plugin.load(MODEL)
        assert (loaded.n_vocab, loaded.n_layers, loaded.ran.kernels) == (2, 1, ("cpu.sum",))
        assert plugin.tokenize("ba") == (1, 0)
        rows = list(plugin.logits([1, 0], layers=True))
        assert [(row.pos, row.layer, list(row.values)) for row in rows] == [
            (0, "l_out-0", [0.0, 0.0]),
            (0, None, [1.0, 0.0]),
            (1, "l_out-0", [1.0, 1.0]),
            (1, None, [0.0, 1.0]),
        ]
        assert list(plugin.replay(0, bytes(rows[1].values))) == [1.0, 0.0]


def test_rows_that_nobody_took_are_skipped():
    with _plugin() as plugin:
        plugin.load(MODEL)
        for row in plugin.logits([1, 0, 1]):
            assert row.pos == 0
            break
        assert plugin.tokenize("ba") == (1, 0)
        assert [row.pos for row in plugin.logits([1, 0])] == [0, 1]


def test_a_server_may_return_top_logprobs_alone():
    with _plugin("unknown size") as plugin:
        plugin.load(MODEL)
        (row,) = plugin.logits([1])
        assert row.top == ((0, -0.5), (1, -2.0))
        assert not row.values


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("exits", PluginCrashed, "fake exited with 3 during tokenize"),
        ("aborts", PluginCrashed, "fake was killed by SIGABRT during tokenize"),
        ("dies at 1", PluginCrashed, "fake was killed by SIGKILL during logits"),
        ("forks", PluginCrashed, "fake exited with 4 during hello"),
        ("closes", PluginCrashed, "fake closed its output during hello"),
        ("hangs", PluginTimeout, "did not respond to tokenize within 0.3 s"),
        ("drips", PluginTimeout, "did not respond to tokenize within 0.3 s"),
        ("talks", PluginInvalid, "printed 'loading 10 %' for hello, which is no JSON object"),
        ("floods", PluginInvalid, "printed a line of more than 1.0 MiB"),
        ("newlines", PluginInvalid, "printed '' for hello"),
        ("twice", PluginInvalid, "without a request"),
        ("future", PluginInvalid, "speaks version 2"),
        ("wrong type", PluginInvalid, "returned True as n_vocab of load"),
        ("no ran", PluginInvalid, "returned nothing as ran of load"),
        ("refuses", PluginFailed, "fake failed at load: no such model"),
        ("other file", HashMismatch, "another file"),
        ("large id", PluginInvalid, "expected a list of ids below 2"),
        ("stops", PluginInvalid, "ended logits after 1 of 3"),
        ("skips", PluginInvalid, "returned position 2 where 1 of 3 is next"),
        ("goes on", PluginInvalid, "returned position 3 where 3 of 3 is next"),
        ("forgets layer", PluginInvalid, "left out layer l_out-0 of position 1"),
        ("repeats layer", PluginInvalid, "layer 'l_out-0' of position 0 twice"),
        ("short", PluginInvalid, "expected 2 numbers, not 1"),
        ("no base64", PluginInvalid, "expected base64 of float32"),
        ("bad top", PluginInvalid, "each id once"),
        ("nan", PluginNotFinite, "returned nan in logits of position 1, number 1"),
        ("inf", PluginNotFinite, "returned -inf in logits of position 1, number 1"),
        ("poor", PluginFailed, "fake can't do tokenize"),
    ],
)
def test_a_fault_has_a_name_and_nothing_is_left_of_the_plug_in(fault: str, kind: type[Exception], said: str):
    plugin = _plugin(fault)
    pid = plugin._lines._child.identity.pid
    with plugin, pytest.raises(kind) as raised:
        _use(plugin)
    assert said in str(raised.value)
    assert type(raised.value) is kind
    row = read_row(pid)
    assert row is None or row.group != pid


def test_a_plug_in_that_does_not_read_is_stopped_in_time():
    with _plugin("deaf") as plugin:
        plugin._lines.send(b"x" * (4 << 20))
        with pytest.raises(PluginTimeout):
            plugin._lines.receive("hello", timeout_s=0.2, most_bytes=100)


def test_a_flooded_log_takes_no_memory_and_its_end_is_kept():
    with _plugin("logs", timeouts=PluginTimeouts(hello_s=0.3)) as plugin:
        with pytest.raises(PluginTimeout) as raised:
            plugin.hello()
        assert 0 < len(plugin.log) <= 16 << 10
    assert raised.value.data["log"] == plugin.log


def test_a_crash_tells_signal_and_the_end_of_the_log():
    with _plugin("exits") as plugin, pytest.raises(PluginCrashed) as raised:
        _use(plugin)
    assert raised.value.data["exit_status"] == 3
    assert raised.value.hint == "its log ends with: out of cheese"
    with _plugin("aborts") as plugin, pytest.raises(PluginCrashed) as raised:
        _use(plugin)
    assert raised.value.data["signal"] == "SIGABRT"


def test_nan_is_located():
    with _plugin("nan") as plugin, pytest.raises(PluginNotFinite) as raised:
        _use(plugin)
    assert {name: raised.value.data[name] for name in ("pos", "layer", "index")} == {
        "pos": 1,
        "layer": None,
        "index": 1,
    }


def test_a_stopped_plug_in_takes_no_more_requests():
    with _plugin("nan") as plugin:
        with pytest.raises(PluginNotFinite):
            _use(plugin)
        with pytest.raises(PluginFailed, match="is stopped"):
            plugin.tokenize("ba")


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(LocalFile, match="no-such-plugin"):
        Plugin(PluginCommand(label="x", argv=("/no-such-plugin",), env={}))


def test_a_silent_fallback_is_seen():
    wanted = LoadRequest(model="m", device="cuda", precision="bf16")
    with _plugin("falls back") as plugin:
        found = fallbacks(wanted, plugin.load(wanted))
    assert found == (
        "device cuda was requested, it ran on cpu",
        "precision bf16 was requested, its weights are F32",
    )
    with _plugin() as plugin:
        loaded = plugin.load(wanted)
        assert "no kernel of cuda ran" in fallbacks(wanted, loaded)
        with pytest.raises(SilentFallback, match="no kernel of cuda ran"):
            require_promised(wanted, loaded, label="fake")
    with _plugin("leaves out") as plugin:
        assert fallbacks(MODEL, plugin.load(MODEL)) == ("1 of 3 tensors of the model are not used",)
    with _plugin() as plugin:
        require_promised(MODEL, plugin.load(MODEL), label="fake")


def test_a_plug_in_gets_the_determinism_but_no_secrets():
    around = {
        "PATH": os.defpath,
        "HF_TOKEN": "hf_1",
        "AWS_SECRET_ACCESS_KEY": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "KEY": "3",
    }
    env = plugin_environment(RuntimeChoice(name="torch", threads=2), around)
    with _plugin("environment", env=env) as plugin:
        seen = dict(one.split("=", 1) for one in plugin.load(MODEL).ran.kernels)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "KEY"} & set(seen)
    assert seen["CUDA_VISIBLE_DEVICES"] == "0"
    assert (seen["OMP_NUM_THREADS"], seen["PYTHONHASHSEED"], seen["GGML_NO_BACKTRACE"]) == ("2", "42", "1")
    named = plugin_environment(RuntimeChoice(name="torch", variables=("KEY",)), around)
    assert named["KEY"] == "3"
