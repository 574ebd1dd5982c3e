"""Frozen and changeable classes: slotted, keyword-only, declared as dataclasses are and made six times faster.

    @frozen
    class Lease:
        owner: ProcessIdentity
        expires_s: float = 0.0

The standard decorator compiles six methods per class, 0.8 ms each class on the test machine; a command that finds
everything known spent a third of its time on that. This one compiles nothing but the constructor, and that only when
the third object is made: a command makes objects of a third of the classes that it imports, and of most of those one or
two. Type checkers see a frozen dataclass. Differences: fields are keyword-only, `fresh(factory=dict)` stands for
`field(default_factory=dict)`, there is no inheritance of fields, and `changed` stands for `replace`. `__post_init__`
may refuse values. `changeable` makes the same of a class whose objects may be changed; such an object equals only
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


class _Factory:
    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def fresh(*, factory: Callable[[], T]) -> T:
    """Declare a default that is made for each object."""
    return _Factory(factory)  # type: ignore[return-value]  # what `frozen` puts in its place is a T


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(fresh,))
def frozen(cls: type[T]) -> type[T]:
    """Turn a class with annotated fields into a frozen one."""
    return _build(cls, by_name=True)


@dataclass_transform(frozen_default=True, field_specifiers=(fresh,))
def frozen_by_position(cls: type[T]) -> type[T]:
    """The same for a class so small that its fields may be given by position."""
    return _build(cls, by_name=False)


@dataclass_transform(kw_only_default=True, field_specifiers=(fresh,))
def changeable(cls: type[T]) -> type[T]:
    """Turn a class with annotated fields into one whose objects may be changed."""
    return _build(cls, by_name=True, is_frozen=False)


def _build(cls: type[T], *, by_name: bool, is_frozen: bool = True) -> type[T]:
    names = tuple(cls.__annotations__)
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    for name, default in defaults.items():
        if isinstance(default, list | dict | set):
            instead = f"fresh(factory={type(default).__name__})"
            message = f"{cls.__qualname__}.{name}: a mutable default would be shared; write {instead}"
            raise TypeError(message)
    body = {name: value for name, value in cls.__dict__.items() if name not in (*defaults, "__dict__", "__weakref__")}
    body["__slots__"] = names
    body["__field_defaults__"] = defaults
    body["__match_args__"] = () if by_name else names
    metaclass: Any = type(cls)
    made = metaclass(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    made.__init__ = _compiled_later(made, names, defaults, by_name=by_name)
    if is_frozen:
        made.__setattr__ = _refuse
        made.__delattr__ = _refuse
    values = (("__eq__", _equal), ("__hash__", _hash)) if is_frozen else ()
    for name, method in (("__repr__", _repr), *values):
        if name not in cls.__dict__:
            setattr(made, name, method)
    made.__getstate__ = _get_state
    made.__setstate__ = _set_state
    return made  # type: ignore[no-any-return]


def compile_constructors() -> None:
    """Compile every constructor now: for a process that forks, each of whose children would compile its own."""
    while _WAITING:
        _WAITING.pop()()


def fields_of(of: object) -> dict[str, Any]:
    """Return the fields of such an object by name, in declared order."""
    return {name: getattr(of, name) for name in field_names(type(of))}


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of such a class, in declared order."""
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]  # every frozen class has them
    return names


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the default of each field of such a class that has one."""
    defaults: dict[str, Any] = kind.__field_defaults__  # type: ignore[attr-defined]  # every frozen class has them
    return {name: value.make() if isinstance(value, _Factory) else value for name, value in defaults.items()}


def changed(of: T, **fields: Any) -> T:
    """Return a copy of a frozen object with some fields changed."""
    return type(of)(**{**fields_of(of), **fields})


_UNCOMPILED = 2
"""How many objects are made before a constructor is worth compiling."""
_WAITING: list[Callable[[], None]] = []
"""What compiles the constructor of each class, until `compile_constructors` has."""


def _compiled_later(
    made: Any, names: tuple[str, ...], defaults: dict[str, Any], *, by_name: bool
) -> Callable[..., None]:
    """Return a constructor that makes a few objects by itself and then puts the compiled one in its place."""
    left = _UNCOMPILED

    def __init__(self: object, *values: Any, **fields: Any) -> None:  # noqa: N807 - it is one
        nonlocal left
        left -= 1
        given = {**defaults, **fields}
        # Whatever is odd about the arguments, the compiled one says as Python does.
        if left < 0 or values or len(given) != len(names) or not all(name in given for name in names):
            compile_now()
            made.__init__(self, *values, **fields)
            return
        for name in names:
            value = given[name]
            made.__dict__[name].__set__(self, value.make() if isinstance(value, _Factory) else value)
        if "__post_init__" in made.__dict__:
            self.__post_init__()  # type: ignore[attr-defined]  # there is one, as was just seen

    def compile_now() -> None:
        if made.__init__ is __init__:
            made.__init__ = _constructor(made, names, defaults, by_name=by_name)

    _WAITING.append(compile_now)
    return __init__


def _constructor(made: Any, names: tuple[str, ...], defaults: dict[str, Any], *, by_name: bool) -> Callable[..., None]:
    # The slots' own setters are the quickest way past the refusal to change anything.
    scope: dict[str, Any] = {f"_set_{name}": made.__dict__[name].__set__ for name in names}
    parameters, lines = [], []
    for name in names:
        if name not in defaults:
            parameters.append(name)
        else:
            default = defaults[name]
            scope[f"_default_{name}"] = default.make if isinstance(default, _Factory) else default
            parameters.append(f"{name}=_default_{name}")
            if isinstance(default, _Factory):
                lines.append(f" if {name} is _default_{name}: {name} = {name}()")
        lines.append(f" _set_{name}(self, {name})")
    if "__post_init__" in made.__dict__:
        lines.append(" self.__post_init__()")
    signature = ", ".join(["self", *(["*"] if by_name and names else []), *parameters])
    text = f"def __init__({signature}):\n" + ("\n".join(lines) or " pass")
    exec(text, scope)  # noqa: S102 - our own text, as the standard decorator does
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{made.__qualname__}.__init__"
    return constructor


def _refuse(self: object, name: str, *_value: object) -> NoReturn:
    message = f"{type(self).__name__}.{name} can't be changed"
    raise AttributeError(message)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__slots__)


def _repr(self: Any) -> str:
    listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__qualname__}({listed})"


def _equal(self: Any, other: object) -> bool:
    return type(other) is type(self) and _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((type(self), _values(self)))


def _get_state(self: Any) -> tuple[Any, ...]:
    return _values(self)


def _set_state(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, value)
