"""Runtimes by name: what each can do, which models it reads, and how its plug-in is started.

    torch                        transformers in the interpreter that has it
    torch,device=cuda,precision=bf16,python=../venv
    llama.cpp                    the reference of `stoker reference fetch`, or a package of that interpreter
    onnx
    http://127.0.0.1:8080/v1     a server with completions
    ./my_plugin.py               any program that speaks the protocol

A plug-in gets an environment of our own: the determinism of C-37, variables that find libraries and devices, and those
that a choice names with `env=`. Tokens and passwords of the caller are not among them.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping

from stoker.core.device import VENDORS
from stoker.core.errors import MissingExtra, NotFound, Usage
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import did_you_mean
from stoker.crossval.plugin_lines import PluginCommand
from stoker.crossval.plugin_messages import LoadRequest
from stoker.host.install import packages_in
from stoker.host.interpreter import find_python

SEED = 42
PRECISIONS = ("f32", "f16", "bf16", "4bit", "4bit-as-f32")
"""Of torch. The last is the reference of the one before it: the same 4-bit weights, computed as floats."""
PROGRAM = "program"


@frozen
class Runtime:
    """One kind of plug-in that ships."""

    name: str
    about: str
    reads: tuple[str, ...]
    """Forms of a model: `gguf`, `safetensors`, `onnx`, `server`."""
    can: tuple[str, ...]
    devices: tuple[str, ...]
    precisions: tuple[str, ...] = ()
    """That can be requested; none: the file's own."""
    needs: tuple[tuple[str, ...], ...] = ()
    """Distributions that its interpreter must have, one of each group."""
    form_needs: Mapping[str, tuple[str, ...]] = fresh(factory=dict)
    """Distributions that it needs for one form of models only; installed with the others."""
    module: str = ""


RUNTIMES = {
    one.name: one
    for one in (
        Runtime(
            name="torch",
            about="transformers on torch",
            reads=("safetensors", "gguf"),
            can=("tokenize", "logits", "layers", "replay"),
            devices=("cpu", "cuda"),
            precisions=PRECISIONS,
            needs=(("torch",), ("transformers",)),
            form_needs={"gguf": ("accelerate", "gguf")},
            module="torch_plugin",
        ),
        Runtime(
            name="llama.cpp",
            about="the C++ reference, on GGUF files",
            reads=("gguf",),
            can=("tokenize", "logits", "layers"),
            devices=("cpu",),
            needs=(("xllamacpp", "llama-cpp-python"),),
            module="llama_plugin",
        ),
        Runtime(
            name="onnx",
            about="ONNX Runtime on an export without a cache",
            reads=("onnx",),
            can=("tokenize", "logits", "layers"),
            devices=("cpu", "cuda"),
            needs=(("onnxruntime", "onnxruntime-gpu"), ("numpy",)),
            module="onnx_plugin",
        ),
        Runtime(
            name="server",
            about="a server with the completions interface of OpenAI",
            reads=("server",),
            can=("tokenize", "logits"),
            devices=("server",),
            module="server_plugin",
        ),
    )
}

_FOUR_BIT = (("bitsandbytes",), ("accelerate",))
"""What torch needs in addition for 4-bit weights."""
_KEYS = ("device", "precision", "python", "threads", "env")
_FINDS = ("HOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME")
"""Variables that find programs, libraries and folders."""
_OFFLINE = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "USE_HUB_KERNELS": "0",
}
_THREADS = (
    "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS",
    "RUST_TEST_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# The packages of an interpreter without Stoker: of ours, the modules of plug-ins alone can be imported there.
_BOOT = """
import sys, types, runpy
name, folder = sys.argv[1:3]
sys.path[:1] = []
for parent, path in (("stoker", []), ("stoker.crossval", []), ("stoker.crossval.plugins", [folder])):
    module = sys.modules[parent] = types.ModuleType(parent)
    module.__path__ = path
runpy.run_module(f"stoker.crossval.plugins.{name}", run_name="__main__", alter_sys=True)
"""
_PLUGINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugins")


@frozen
class RuntimeChoice:
    """A runtime as a person chose it."""

    name: str
    """One of `RUNTIMES`, or `program`."""
    device: str = "cpu"
    precision: str = ""
    python: str = ""
    """Its interpreter; empty: the first one that has what it needs."""
    threads: int = 1
    variables: tuple[str, ...] = ()
    """Names of variables of the caller that its plug-in gets, too: a server's key."""
    url: str = ""
    program: tuple[str, ...] = ()

    @property
    def changes_unseen(self) -> bool:
        """Whether it may answer otherwise the next time, although nothing that is known of it has changed.

        A server may have another model by then, a program other files behind it, and a variable another value.
        """
        return bool(self.program or self.url or self.variables)

    @property
    def label(self) -> str:
        """What it is called in messages and reports."""
        if self.program:
            return os.path.basename(self.program[-1])
        words = [self.device] if self.device not in ("cpu", "server") else []
        return " ".join([self.name, *words, *([self.precision] if self.precision else [])])

    def load_request(self, model: str, *, sha256: str = "", seed: int = SEED) -> LoadRequest:
        """Return the request with which its plug-in loads a model."""
        return LoadRequest(
            model=self.url or model,
            sha256="" if self.url else sha256,
            precision=self.precision,
            threads=self.threads,
            seed=seed,
            device=self.device,
        )


@frozen
class RuntimePlaces:
    """Where runtimes are looked for."""

    environment: Mapping[str, str]
    folder: str
    """Where the command was typed."""
    own_prefix: str = sys.prefix
    own_python: str = sys.executable
    reference: str = ""
    """Interpreter of the fetched reference; empty: none was fetched."""


def read_runtime(text: str) -> RuntimeChoice:
    """Parse a choice: a name, an address or a program, then `,key=value`. Raises `Usage`."""
    first, *rest = text.split(",")
    made = _named(first)
    fields: dict[str, object] = {}
    for word in rest:
        key, mark, value = word.partition("=")
        if not mark or key not in _KEYS or not value:
            hint = did_you_mean(key, _KEYS) or f"keys are {', '.join(_KEYS)}"
            raise Usage(f"{text}: {word!r} is no key=value of a runtime", hint=hint)
        if key == "env":
            fields["variables"] = (*fields.get("variables", ()), value)  # type: ignore[misc]  # a tuple, if it is there
        else:
            fields[key] = value
    if "threads" in fields:
        text_of = str(fields["threads"])
        fields["threads"] = int(text_of) if text_of.isascii() and text_of.isdecimal() and len(text_of) < 5 else 0
        if fields["threads"] == 0:
            raise Usage(f"{text}: threads is a whole number from 1 to 9999")
    made = changed(made, **fields)
    _check(made, text)
    return made


def runtimes_for(model: str) -> tuple[str, ...]:
    """Return the names of runtimes that read a model, by its form; none if the form is unknown."""
    form = model_form(model)
    return tuple(one.name for one in RUNTIMES.values() if form in one.reads)


def model_form(model: str) -> str:
    """Return the form of a model: `gguf`, `onnx`, `safetensors`, `server`; empty: unknown."""
    if model.startswith(("http://", "https://")):
        return "server"
    for form in ("gguf", "onnx", "safetensors"):
        if model.endswith(f".{form}"):
            return form
    names = os.listdir(model) if os.path.isdir(model) else []
    if any(name.endswith(".safetensors") for name in names):
        return "safetensors"
    return "onnx" if "model.onnx" in names else ""


def whole_model(path: str) -> str:
    """Return the folder of a model whose `model.safetensors` was named: config.json and the tokenizer belong to it."""
    folder, name = os.path.split(path)
    return folder if name == "model.safetensors" and os.path.isfile(path) else path


def plugins_digest() -> str:
    """Return the digest of all modules of plug-ins."""
    found = hashlib.sha256()
    for name in sorted(one for one in os.listdir(_PLUGINS) if one.endswith(".py")):
        with open(os.path.join(_PLUGINS, name), "rb") as file:
            found.update(b"%s %s\n" % (name.encode(), hashlib.sha256(file.read()).hexdigest().encode()))
    return found.hexdigest()


def plugin_command(choice: RuntimeChoice, at: RuntimePlaces, *, seed: int = SEED, form: str = "") -> PluginCommand:
    """Return how the plug-in of a choice is started, for models of a form.

    Raises `MissingExtra` if no interpreter has what it needs, `NotFound` if there is no such program.
    """
    env = plugin_environment(choice, at.environment, seed=seed)
    if choice.program:
        if not os.path.isfile(os.path.join(at.folder, choice.program[-1])):
            raise NotFound(f"there is no program {choice.program[-1]!r}", hint="a path is a program that is run")
        return PluginCommand(label=choice.label, argv=choice.program, env=env, cwd=at.folder)
    runtime = RUNTIMES[choice.name]
    python = _python_for(runtime, choice, at, form)
    # Nothing in the folder of the call may replace what the plug-in imports.
    return PluginCommand(label=choice.label, argv=(python, "-c", _BOOT, runtime.module, _PLUGINS), env=env)


def plugin_environment(choice: RuntimeChoice, environment: Mapping[str, str], *, seed: int = SEED) -> dict[str, str]:
    """Return all variables of a plug-in: those of determinism, those that find things, and the ones that it names."""
    prefixes = tuple(prefix for vendor in VENDORS.values() for prefix in vendor.variable_prefixes)
    kept = {name: value for name, value in environment.items() if name in _FINDS or name.startswith(prefixes)}
    named = {name: environment[name] for name in choice.variables if name in environment}
    return {**kept, **_OFFLINE, **determinism(choice.threads, seed), **named}


def determinism(threads: int, seed: int) -> dict[str, str]:
    """Return the variables under which equal inputs give equal results (C-37)."""
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # llama.cpp would start a debugger when it aborts.
        "GGML_NO_BACKTRACE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": str(seed),
        "STOKER_DETERMINISTIC": "1",
        "STOKER_SEED": str(seed),
        "TOKENIZERS_PARALLELISM": "false",
    }


def install_line(runtime: Runtime, python: str, precision: str = "") -> str:
    """Return the line to type that installs what a runtime needs."""
    if runtime.name == "llama.cpp":
        return "stoker reference fetch"
    names = (*(group[0] for group in _needs(runtime, precision)), *_form_packages(runtime))
    return f"{python} -m pip install {' '.join(dict.fromkeys(names))}"


def _needs(runtime: Runtime, precision: str, form: str = "") -> tuple[tuple[str, ...], ...]:
    of_form = ((name,) for name in runtime.form_needs.get(form, ()))
    return (*runtime.needs, *of_form, *(_FOUR_BIT if precision.startswith("4bit") else ()))


def _form_packages(runtime: Runtime) -> tuple[str, ...]:
    return tuple(name for names in runtime.form_needs.values() for name in names)


def _named(first: str) -> RuntimeChoice:
    if first.startswith(("http://", "https://")):
        return RuntimeChoice(name="server", device="server", url=first)
    if os.sep in first or first.endswith(".py"):
        # A script by its name alone is one of this folder.
        program = (sys.executable, first) if first.endswith(".py") and not os.access(first, os.X_OK) else (first,)
        return RuntimeChoice(name=PROGRAM, program=program)
    named = [name for name in RUNTIMES if name != "server"]
    if first not in named:
        hint = did_you_mean(first, named) or "a name, the address of a server, or the path of a program"
        raise Usage(f"unknown runtime {first!r}; there are {', '.join(named)}", hint=hint)
    return RuntimeChoice(name=first)


def _check(choice: RuntimeChoice, text: str) -> None:
    if choice.name == PROGRAM:
        return
    runtime = RUNTIMES[choice.name]
    if choice.device.partition(":")[0] not in runtime.devices:
        raise Usage(f"{text}: {choice.name} has no device {choice.device}; it has {', '.join(runtime.devices)}")
    if choice.precision and choice.precision not in runtime.precisions:
        has = f"it has {', '.join(runtime.precisions)}" if runtime.precisions else "the file has its own"
        raise Usage(f"{text}: {choice.name} has no precision {choice.precision}; {has}")


def _python_for(runtime: Runtime, choice: RuntimeChoice, at: RuntimePlaces, form: str) -> str:
    """Return the interpreter for a runtime: the named one, the reference's, ours, that of the folder."""
    if choice.python:
        return find_python(choice.python, folder=at.folder, environment=at.environment, own_prefix=at.own_prefix).path
    if runtime.name == "llama.cpp" and at.reference:
        return at.reference
    found = find_python("", folder=at.folder, environment=at.environment, own_prefix=at.own_prefix).path
    for python in filter(None, (at.own_python, found)):
        prefix = at.own_prefix if python == at.own_python else os.path.dirname(os.path.dirname(python))
        if not missing_packages(runtime, packages_in(prefix), choice.precision, form):
            return python
    missing = missing_packages(runtime, packages_in(at.own_prefix), choice.precision, form)
    install = install_line(runtime, at.own_python, choice.precision)
    raise MissingExtra(
        f"{choice.label} needs {', '.join(missing)}, which neither Stoker's Python nor that of this folder has",
        hint=f"{install}, or name an interpreter: {runtime.name},python=PATH",
        runtime=runtime.name,
        missing=list(missing),
    )


def library_versions(choice: RuntimeChoice, python: str) -> tuple[str, ...]:
    """Return the versions of a runtime's libraries in an interpreter: a result of other ones is not reused."""
    runtime = RUNTIMES.get(choice.name)
    if runtime is None or not runtime.needs:
        return ()
    packages = packages_in(os.path.dirname(os.path.dirname(python)))
    needed = [name for group in _needs(runtime, choice.precision) for name in group]
    names = dict.fromkeys(name for name in (*needed, *_form_packages(runtime)) if name in packages)
    return tuple(f"{name}=={packages[name]}" for name in names)


def missing_packages(runtime: Runtime, packages: Iterable[str], precision: str = "", form: str = "") -> tuple[str, ...]:
    """Return the distributions that a runtime needs for a precision and a form of models, and an interpreter lacks."""
    present = set(packages)
    return tuple(group[0] for group in _needs(runtime, precision, form) if not present & set(group))
