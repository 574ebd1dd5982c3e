"""Adapters are tried at a terminal: typed prompts, answers token by token, beside each other and beside the base."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec

import pytest

from stoker.cookbooks.language.bundled import TinyShape, bundled_base, write_base
from stoker.cookbooks.language.peft import write_adapter
from tests.later import imported_later
from tests.system.shell import Shell, wait_until
from tests.system.test_cli_fleet_following import ended

with imported_later("torch"):
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import load_base

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

PATIENCE_S = 120.0
_ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A command on a terminal of its own, so that Ctrl-C and Ctrl-D reach it as keys do."""

    def __init__(self, main: int, process: subprocess.Popen[bytes]) -> None:
        self._main = main
        self.process = process
        self.seen = ""

    def type(self, text: str) -> int:
        """Type keys; return how much was seen before."""
        os.write(self._main, text.encode())
        return len(self.seen)

    def interrupt(self, mark: str) -> str:
        """Press Ctrl-C until a text comes: readline misses one that comes just before it waits."""
        begin = self.type("\x03")
        for _ in range(int(PATIENCE_S)):
            with suppress(TimeoutError):
                return self.until(mark, begin, patience_s=1.0)
            self.type("\x03")
        raise TimeoutError(self.seen[begin:])

    def until(self, mark: str, begin: int = 0, *, more: int = 0, patience_s: float = PATIENCE_S) -> str:
        """Wait for a text, and so many characters after it; return what was seen since `begin`."""
        deadline_s = time.monotonic() + patience_s
        while (at := self.seen.find(mark, begin)) < 0 or len(self.seen) < at + len(mark) + more:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._main], [], [], left_s)[0]:
                raise TimeoutError(self.seen[begin:])
            self.seen += os.read(self._main, 65536).decode(errors="replace")
        return self.seen[begin:]


@contextmanager
def at_terminal(shell: Shell, *words: str) -> Iterator[Terminal]:
    main, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, sys.executable, "-P", "-m", "stoker", *words],
        cwd=shell.folder,
        env={**shell.env, "TERM": "xterm", "NO_COLOR": "1", "INPUTRC": "/dev/null"},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    try:
        yield Terminal(main, process)
    finally:
        process.kill()
        process.wait()
        os.close(main)


@pytest.fixture
def shell(shell: Shell) -> Shell:
    base = load_base(bundled_base("tiny"))
    for seed, name in enumerate(("one", "two"), 1):
        adapter = fresh_adapter(base.shape, AdapterSpec(rank=2, alpha=4.0, targets=("q_proj", "down_proj"), seed=seed))
        draws = torch.Generator().manual_seed(seed)
        weights = {name: (a, torch.randn(b.shape, generator=draws) / 5) for name, (a, b) in adapter.weights.items()}
        (shell.folder / name).mkdir()
        write_adapter(shell.folder / name, adapter.spec, weights, base_name="tiny")
    return shell


def test_prompts_are_typed_and_answered_by_all_side_by_side(shell: Shell) -> None:
    """One session for everything: its process imports torch for seconds."""
    with at_terminal(shell, "chat", "./one", "./two", "--base", "--tokens", "400") as terminal:
        terminal.until("Ctrl-D leaves")
        terminal.until("> ")
        # The base has never learned to end.
        begin = terminal.type("hello\r")
        terminal.until("[base]\r\n", begin, more=40)
        terminal.interrupt("\n> ")
        assert [f"[{name}]" in terminal.seen for name in ("./one", "./two", "base")] == [True] * 3
        terminal.until("\n> ", terminal.type("/reset\r"))
        first = terminal.until("\n> ", terminal.type("2+3=\r"))
        parts = [part.split("\n", 1)[1] for part in first.replace("\r", "").removesuffix("> ").split("\n[")[1:]]
        assert len(set(parts)) == len(parts) == 3
        second = terminal.until("\n> ", terminal.type("2+3=\r"))
        assert second != first, "it is the second turn of the conversation"
        terminal.until("\n> ", terminal.type("/reset\r"))
        assert terminal.until("\n> ", terminal.type("2+3=\r")) == first
        terminal.until("half of a li", terminal.type("half of a li"))
        terminal.interrupt("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(PATIENCE_S) == 0


def test_one_prompt_is_answered_as_json(shell: Shell) -> None:
    words = ("chat", "./one", "./two", "tiny", "--prompt", "2+3=", "--tokens", "6")
    assert shell.stoker(*words).code == 2
    random = ("--temperature", "0.8", "--seed", "3", "--json")
    done = shell.stoker(*words[:3], *words[4:], *random, STOKER_GPU_FAKE="cuda:24GiB")
    assert done.code == 0, done.err
    assert "This torch can't use the assigned GPU: computed on the CPU." in done.err
    first, second = done.objects()
    assert (first["model"], second["model"]) == ("./one", "./two")
    assert first["completion"] != second["completion"]


def test_what_cant_answer_is_refused_before_anything_is_loaded(shell: Shell) -> None:
    other = write_base(shell.folder / "other", TinyShape(hidden=32))
    shutil.copytree(bundled_base("tiny"), shell.folder / "whole")
    (shell.folder / "unlike").mkdir()
    (shell.folder / "unlike" / "config.json").write_text("{}")
    for words, code, text in (
        ((), 2, "NAME is missing"),
        (("./one", "--temperature", "101", "--tokens", "0"), 2, "--temperature: not from 0 to 100; --tokens: '0'"),
        (
            ("./one", "--tokens", "100001", "--seed", "1000000001"),
            2,
            "--tokens: '100001' is larger than 100,000; --seed",
        ),
        (("./one", "./one"), 2, "./one is named twice"),
        (("base", "--base"), 2, "base is what --base calls the base alone"),
        (("./unlike",), 2, "unlike can't be used: "),
        (("./one", "./whole"), 2, "./whole is a whole model, no adapter over a base"),
        (("gone",), 1, "there is no job 'gone'"),
        (("./gone",), 16, "./gone does not exist"),
        (("./one", "--over", str(other)), 2, "its matrices for model.layers.0."),
        (("./one", "--over", "nowhere"), 2, "folder not found: nowhere"),
    ):
        done = shell.stoker("chat", *words, "--prompt", "x")
        assert (done.code, text in done.err) == (code, True), (words, done.code, done.err)


@pytest.mark.slow
def test_trials_of_a_sweep_answer_beside_each_other(shell: Shell) -> None:
    run = shell.stoker("run", "language/lora", "rank=2,4", "steps=3", "batch=4", "threads=1")
    assert run.code == 0, run.err
    done = shell.stoker("chat", "lora/1", "lora/2", "--base", "--prompt", "2+3=", "--tokens", "4", "--json")
    assert [one["model"] for one in done.objects()] == ["lora/1", "lora/2", "base"]
    whole = shell.stoker("chat", "lora", "--prompt", "2+3=")
    assert (whole.code, "lora is a sweep of 2 trials" in whole.err) == (2, True)
    assert "the best: stoker chat stoker-out/lora/best" in whole.err
    best = shell.stoker("chat", "stoker-out/lora/best", "--prompt", "2+3=", "--tokens", "4", "--json")
    assert best.objects()[0]["completion"] in {one["completion"] for one in done.objects()}
    other = shell.stoker("run", "language/lora", "steps=3", "batch=4", "threads=1", "base_dtype=nf4", "--name", "four")
    assert other.code == 0, other.err
    both = shell.stoker("chat", "lora/1", "stoker-out/four", "--prompt", "2+3=", "--tokens", "4")
    assert both.code == 0, both.err
    note = "note: trained with another base_dtype (stoker-out/four with nf4): all answer with base_dtype=auto"
    assert note in both.err
    assert "note: trained with" not in shell.stoker("chat", "four", "--prompt", "2+3=", "--tokens", "4").err


def test_a_machine_of_the_fleet_answers(shell: Shell) -> None:
    prompt = "2+3=, [it's]: 'x' ${HOME}"
    here = shell.stoker("chat", "./one", "./two", "--base", "--prompt", prompt, "--tokens", "4", "--json")
    with fleet(shell):
        words = ("chat", "./one", "./two", "--base", "--on", "desk", "--tokens", "4")
        done = shell.stoker(*words, "--prompt", prompt, "--json")
        assert done.code == 0, done.err
        answers = [{**one, "machine": "desk"} for one in here.objects()]
        for one in answers:
            del one["seconds"]
        assert done.objects() == answers
        typed = piped(shell, "2+3=\n2+3=\n", *words)
        assert typed.returncode == 0, typed.stderr
        _, first, second = typed.stdout.split("[./one]\n")
        assert [one.count("[./two]\n") for one in (first, second)] == [1, 1]
        assert first != second, "it is the second turn"
        for more, code, text in (
            (("--on", "dsk", "--prompt", "x"), 1, "did you mean 'desk'?"),
            (("--on", "desk", "--prompt", "x", "--over", "nowhere"), 28, "folder not found: nowhere"),
        ):
            done = shell.stoker("chat", "./one", *more)
            assert (done.code, text in done.err) == (code, True), (more, done.code, done.err)
        assert "no prompt on standard input" in piped(shell, "\n", *words).stderr
        assert "/reset does not work with --on" in piped(shell, "a\n/reset\n", *words).stderr


def piped(shell: Shell, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a text on its standard input."""
    argv = [sys.executable, "-P", "-m", "stoker", *words]
    return subprocess.run(
        argv,
        cwd=shell.folder,
        env=shell.env,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@contextmanager
def fleet(shell: Shell) -> Iterator[None]:
    """Serve, with one worker."""
    shell.env["STOKER_RUNTIME"] = str(shell.folder / "run")
    with ExitStack() as stack:
        serving = stack.enter_context(ended(shell.start("serve", "--listen", "127.0.0.1:0", "--json")))
        assert serving.stdout is not None
        json.loads(serving.stdout.readline())
        stack.enter_context(ended(shell.start("work", "--name", "desk")))
        wait_until(lambda: "desk" in shell.stoker("machines", "--json").out)
        yield
