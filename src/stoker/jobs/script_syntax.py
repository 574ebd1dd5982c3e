"""The syntax of a Python script and of the modules beside it that it imports: parsed, never run or imported.

Input is untrusted. Files are bounded in size and number, a pipe or a device is refused, and what can't be parsed is an
error with its line. Values are literals, simple arithmetic with them, and constants of the module.
"""

from __future__ import annotations

import ast
import errno
import math
import operator as operators
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from stoker.core.errors import LocalFile, StokerError
from stoker.core.text import one_line
from stoker.host.durable import read_regular, translate

LARGEST_BYTES = 1 << 20
_MOST_MODULES = 32
_MOST_NESTED = 20
_LONGEST_TEXT = 2000
_MOST_VALUES = 200
_LARGEST_NUMBER = 1e18
_LARGEST_EXPONENT = 64

UNKNOWN: Final[Any] = object()
"""The value of an expression that only a run of the script would compute."""


class ModuleSyntax:
    """The statements of one module, walked once."""

    def __init__(self, tree: ast.Module, *, is_script: bool) -> None:
        """Index a module. Of an imported one, what it does if it is run itself is left out."""
        self.body = [node for node in tree.body if is_script or not _is_main_block(node)]
        self.calls: list[ast.Call] = []
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.assigned: list[ast.Assign] = []
        self.imports: dict[str, None] = {}
        """Names of modules, in their order; relative ones without their dots."""
        self.names: set[str] = set()
        """Names, attributes and short texts that occur."""
        for statement in self.body:
            for node in ast.walk(statement):
                self._add(node)
        # In the order of the lines: a walk goes by levels.
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))
        self.constants: dict[str, Any] = {}
        for node in self.body:
            name, value = _assignment(node)
            if name and value is not None:
                self.constants[name] = self.value(value)

    def _add(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions.setdefault(node.name, node)
        elif isinstance(node, ast.ClassDef):
            self.classes.setdefault(node.name, node)
        elif isinstance(node, ast.Assign):
            self.assigned.append(node)
        elif isinstance(node, ast.Import):
            self.imports.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            below = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
            self.imports.update(dict.fromkeys([*filter(None, [module]), *below]))
        elif isinstance(node, ast.Name):
            self.names.add(node.id)
        elif isinstance(node, ast.Attribute):
            self.names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= _MOST_NESTED:
            self.names.add(node.value)

    def is_importing(self, *names: str) -> bool:
        """Return True if it imports one of these packages, or a module of one."""
        return any(one.partition(".")[0] in names for one in self.imports)

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """Return the value of an expression, or `UNKNOWN`."""
        found: Any = UNKNOWN
        if depth > _MOST_NESTED:
            return found
        if isinstance(node, ast.Constant):
            found = _plain(node.value)
        elif isinstance(node, ast.Name):
            found = self.constants.get(node.id, UNKNOWN)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found = _computed(ast.Mult(), self.value(node.operand, depth + 1), -1)
        elif isinstance(node, ast.BinOp):
            found = _computed(node.op, self.value(node.left, depth + 1), self.value(node.right, depth + 1))
        elif isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, depth + 1) for item in node.elts[:_MOST_VALUES]]
            found = UNKNOWN if any(item is UNKNOWN for item in items) else items
        return found

    def keyword(self, call: ast.Call, name: str, place: int = -1) -> Any:
        """Return the value of an argument that is given by its name, or else by its place; `UNKNOWN` if by neither."""
        return self.value(argument(call, name, place))

    def text(self, call: ast.Call, name: str, place: int = -1) -> str:
        """Return the text of an argument in one line; empty if it is none."""
        value = self.keyword(call, name, place)
        return one_line(value, _LONGEST_TEXT) if isinstance(value, str) else ""


def read_modules(script: str, *, shown: str, roots: Iterable[str]) -> list[ModuleSyntax]:
    """Return the syntax of a script, and of the modules in its folder and in `roots` that it imports, nearest first.

    Raises `LocalFile` or `NoPermission` if the script can't be read or parsed. Modules that can't be are left out.
    """
    modules = [ModuleSyntax(_parse(script, shown), is_script=True)]
    folders = list(dict.fromkeys([os.path.dirname(script), *roots]))
    seen = {os.path.realpath(script)}
    for module in modules:
        for path in _files_of(module.imports, folders):
            if os.path.realpath(path) in seen or len(modules) >= _MOST_MODULES:
                continue
            seen.add(os.path.realpath(path))
            try:
                modules.append(ModuleSyntax(_parse(path, path), is_script=False))
            except StokerError:
                continue
    return modules


def _files_of(imports: Iterable[str], folders: Iterable[str]) -> Iterator[str]:
    for name in imports:
        parts = name.split(".")
        for folder in folders:
            base = os.path.join(folder, *parts)
            yield from (path for path in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(path))


def _parse(path: str, shown: str) -> ast.Module:
    try:
        data = read_regular(os.path.realpath(path), LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            hint = "name the script that parses the options: stoker init SCRIPT"
            raise LocalFile(f"{shown} is larger than {LARGEST_BYTES >> 20} MiB", hint=hint, path=shown) from None
        raise translate(error, shown) from error
    why = "too deeply nested"
    try:
        with warnings.catch_warnings():
            # Such as an invalid escape: the script's own run reports it.
            warnings.simplefilter("ignore")
            return ast.parse(data, filename=shown)
    except SyntaxError as error:
        why = f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    except ValueError as error:
        why = str(error)
    except (RecursionError, MemoryError):
        pass
    raise LocalFile(f"{shown} can't be parsed as Python 3: {one_line(why, 200)}", hint="correct it", path=shown)


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _assignment(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """Return name and value of a statement that assigns to one name."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return "", None


def _plain(value: Any) -> Any:
    if value is None or type(value) is bool:
        return value
    if type(value) is str:
        return value[:_LONGEST_TEXT]
    if type(value) is int:
        return value if abs(value) < 2**63 else UNKNOWN
    return value if type(value) is float and math.isfinite(value) else UNKNOWN


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of simple arithmetic, bounded so that `9**9**9` costs nothing."""
    compute = _ARITHMETIC.get(type(operator))
    is_text = type(left) is str and type(right) is str and isinstance(operator, ast.Add)
    if compute is None or not (is_text or (_is_small(left) and _is_small(right))):
        return UNKNOWN
    if isinstance(operator, ast.Pow) and abs(right) > _LARGEST_EXPONENT:
        return UNKNOWN
    try:
        return _plain(compute(left, right))
    except (ArithmeticError, ValueError):
        return UNKNOWN


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operators.add,
    ast.Sub: operators.sub,
    ast.Mult: operators.mul,
    ast.Div: operators.truediv,
    ast.FloorDiv: operators.floordiv,
    ast.Pow: operators.pow,
}


def _is_small(number: Any) -> bool:
    return type(number) in (int, float) and abs(number) <= _LARGEST_NUMBER


def argument(call: ast.Call, name: str, place: int = -1) -> ast.expr | None:
    """Return an argument of a call, by its name or else by its place."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[place] if 0 <= place < len(call.args) else None


def called(node: ast.expr) -> str:
    """Return the dotted name of what is called or named: `fire.Fire`; empty if it has none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MOST_NESTED:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else parts[0] if parts else ""


def decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Return the calls among a function's decorators."""
    return (node for node in function.decorator_list if isinstance(node, ast.Call))


def receiver(node: ast.expr) -> str:
    """Return the variable on which a method is called, also through a call in between."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return called(node)


def annotated_parts(node: ast.expr | None) -> list[ast.expr]:
    """Return the parts of `Annotated[…]`."""
    if isinstance(node, ast.Subscript) and called(node.value).endswith("Annotated"):
        return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return []


def type_name(node: ast.expr | None, depth: int = 0) -> str:
    """Return the name of a type, without what makes it optional or annotates it: `float | None` is `float`."""
    if node is None or depth > _MOST_NESTED:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if node.value.isidentifier() else ""
    if isinstance(node, ast.BinOp):
        return type_name(node.left, depth + 1)
    if isinstance(node, ast.Subscript):
        if called(node.value).rpartition(".")[2] not in ("Optional", "Annotated"):
            return ""
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return type_name(inner, depth + 1)
    name = called(node.func) if isinstance(node, ast.Call) else called(node)
    return {"IntRange": "int", "FloatRange": "float", "INT": "int", "FLOAT": "float"}.get(
        name.rpartition(".")[2], name.rpartition(".")[2]
    )


def literal_choices(node: ast.expr | None) -> tuple[Any, ...]:
    """Return the values of `Literal[…]`."""
    if not isinstance(node, ast.Subscript) or not called(node.value).endswith("Literal"):
        return ()
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return tuple(one.value for one in items if isinstance(one, ast.Constant) and type(one.value) in (int, float, str))
