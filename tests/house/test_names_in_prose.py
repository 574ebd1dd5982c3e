"""Names in docstrings and comments: each `ClassName`, `module.name` and `Class.member` in backticks exists."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.conftest import SourceModule

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PLAIN = re.compile(r"([A-Za-z_][\w.]*)(?:\(.*\))?")
_CLASS = re.compile(r"(?<![-\w])_?[A-Z]+[a-z]\w*(?![-\w])")
_FILE = re.compile(r"\.(gguf\.part|jsonl?|lock|py|safetensors|stat|kill|toml|txt|zst)$")
_NAMELESS = (ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
EXCEPTIONS = {
    # Headers of HTTP.
    *("Authorization", "Date", "Host", "Location", "Origin"),
    # Objects as a caller's code names them.
    *("job.check", "job.made", "job.save", "queue.on_change", "stop.ask"),
    # Places in files and configurations of a user.
    *("STOKER__a__b", "data.DATA", "load.args.rows", "model.layers.0.self_attn.q_proj", "trees.verbose"),
    # Units, products, months, and what other programs write or read.
    *("GeForce", "GiB", "Insufficient", "Nov", "Permissions", "WorkingDirectory"),
    # A library that is not imported.
    "PeftModel.from_pretrained",
}


class Source:
    """The names and the prose of all modules."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        """The names in each module, also in functions, by its path and by each end of that path."""
        self.members: dict[str, set[str]] = {}
        self.bases: dict[str, set[str]] = {}
        self.outside = set(dir(builtins))
        """Names of builtins and of imported libraries, and attributes that are read anywhere."""
        self.prose: list[tuple[str, int, str]] = []
        """Docstrings and comments, each with its module and line."""

    def read(self, module: SourceModule) -> None:
        """Add a module."""
        place = str(module.path)
        parts = [part for part in module.path.with_suffix("").parts if part != "__init__"]
        names: set[str] = set()
        self._walk(module.tree, place, (names,))
        for start in range(len(parts)):
            self.modules.setdefault(".".join(parts[start:]), set()).update(names)
        for number, line in enumerate(module.text.splitlines(), 1):
            _, mark, comment = line.partition("# ")
            if mark and "`" in comment:
                self.prose.append((place, number, comment))

    def _walk(self, parent: ast.AST, place: str, owners: tuple[set[str], ...]) -> None:
        for node in _children(parent):
            inner: tuple[set[str], ...] = owners
            names: tuple[str, ...] = ()
            match node:
                case ast.ClassDef():
                    names = (node.name,)
                    inner = (*owners, self.members.setdefault(node.name, set()))
                    bases = (ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
                    self.bases.setdefault(node.name, set()).update(bases)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    names = (node.name,)
                case ast.Name(ctx=ast.Store()):
                    names = (node.id,)
                case ast.Attribute(ctx=ast.Store()):
                    names = (node.attr,)
                case ast.Attribute():
                    self.outside.add(node.attr)
                case ast.Import() | ast.ImportFrom():
                    names = self._imported(node)
                case ast.Expr(value=ast.Constant(value=str(text))) if "`" in text:
                    self.prose.append((place, node.lineno, text))
            for owner in owners if names else ():
                owner.update(names)
            self._walk(node, place, inner)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> tuple[str, ...]:
        names = tuple((alias.asname or alias.name).split(".")[0] for alias in node.names)
        if isinstance(node, ast.Import):
            self.outside.update(part for alias in node.names for part in alias.name.split("."))
        elif node.module and not node.module.startswith("stoker."):
            self.outside.update(node.module.split("."), names)
        return names

    def has(self, name: str) -> bool:
        """Return True if a name exists."""
        parts = name.split(".")
        if name in self.modules or name in EXCEPTIONS or _FILE.search(name):
            return True
        if len(parts) == 1:
            return name in self.outside or any(name in names for names in self.modules.values())
        for length in range(len(parts) - 1, 0, -1):
            names = self.modules.get(".".join(parts[:length]), ())
            if parts[length] in names:
                return len(parts) == length + 1 or self.is_member(parts[length], parts[length + 1])
        if parts[0] in self.members:
            return self.is_member(parts[0], parts[1])
        return parts[0] in self.outside and parts[0] not in self.modules

    def is_member(self, owner: str, name: str) -> bool:
        """Return True if a class or a base of it has a member; of a base that is not ours, anything is one."""
        if owner not in self.members:
            return owner not in ("ABC", "Generic", "NamedTuple", "Protocol", "object")
        return name in self.members[owner] or any(self.is_member(base, name) for base in self.bases[owner])


def _children(parent: ast.AST) -> list[ast.AST]:
    """Return the nodes below one, as `ast.iter_child_nodes` does, without those that have no name in them."""
    found: list[Any] = []
    for field in parent._fields:
        value = getattr(parent, field, None)
        if isinstance(value, list):
            found += value
        elif isinstance(value, ast.AST):
            found.append(value)
    return [node for node in found if isinstance(node, ast.AST) and not isinstance(node, _NAMELESS)]


@pytest.fixture(scope="module")
def source(modules: tuple[SourceModule, ...]) -> Source:
    found = Source()
    for module in modules:
        found.read(module)
    return found


def _names(prose: str) -> Iterator[tuple[int, str]]:
    """Return dotted names and names of classes in backticks, each with the number of lines before it."""
    for code in _CODE.finditer(prose):
        plain = _PLAIN.fullmatch(code[1])
        names = [plain[1]] if plain else _CLASS.findall(code[1])
        yield from ((prose.count("\n", 0, code.start()), name) for name in names if _is_checked(name))


def _is_checked(name: str) -> bool:
    return "." in name or (any(map(str.isupper, name)) and any(map(str.islower, name)))


def test_names_in_prose_exist(source: Source) -> None:
    missing = [
        f"{place}:{line + before}: {name}"
        for place, line, prose in source.prose
        for before, name in _names(prose)
        if not source.has(name)
    ]
    assert not missing, "what is it called now?"


@pytest.mark.parametrize(
    "name",
    [
        *("NoSuchClass", "JobSpec.no_such_field", "core.job.NoSuchClass", "core.no_such_module", "jobs.core"),
        *("core.job.JobSpec.no_such_field", "no_such_module.JobSpec"),
    ],
)
def test_a_wrong_name_is_found(source: Source, name: str) -> None:
    assert [*_names(f"Return a `{name}`.")] == [(0, name)]
    assert not source.has(name)


def test_right_names_are_accepted(source: Source) -> None:
    names = (
        "JobSpec",
        "JobSpec.timeout_s",
        "core.job.JobSpec",
        "core.job",
        "stoker.core.job",
        "KeyError",
        "os.replace",
    )
    assert [*filter(source.has, names)] == [*names]


def test_names_of_classes_are_found_in_code() -> None:
    assert [*_names("A\n`dict[str, LocatedValue]`, or `x`.")] == [(1, "LocatedValue")]
