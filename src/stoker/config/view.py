"""A configuration as text: YAML and JSON that read back as the same values.

The YAML is the plain subset that `yaml_file` reads: block maps, lists in one line where they hold single values, text
in double quotes wherever it could mean something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.config.yaml_scalars import read_plain
from stoker.model.json_text import dumps

# Text that stands without quotes in block and flow alike: nothing in it means anything to YAML.
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*", re.ASCII)
_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_yaml(values: Mapping[str, Any]) -> str:
    """Write values as YAML."""
    return "".join(f"{line}\n" for line in _map_lines(values, "")) if values else "{}\n"


def to_json(values: Mapping[str, Any]) -> str:
    """Write values as JSON, numbers that are not finite tagged."""
    return dumps(dict(values), indent=2) + "\n"


def scalar_text(value: Any) -> str:
    """Write a single value as YAML reads it back."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return _float_text(value)
    return str(value) if type(value) is int else _text(value)


def _map_lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if type(value) is dict and value:
            yield f"{indent}{_text(key)}:"
            yield from _map_lines(value, f"{indent}  ")
        elif type(value) in (list, tuple) and any(type(item) in (dict, list, tuple) for item in value):
            yield f"{indent}{_text(key)}:"
            for item in value:
                yield f"{indent}  - {_flow(item)}"
        else:
            yield f"{indent}{_text(key)}: {_flow(value)}"


def _flow(value: Any) -> str:
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(key)}: {_flow(item)}' for key, item in value.items())}}}"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return scalar_text(value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and type(read_plain(text)) is str:
        return text
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or f"\\u{ord(found[0]):04x}"
