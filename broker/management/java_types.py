"""Types of Java, by which arguments and results of Artemis' management are told."""

import json
from typing import Any, Final

from orthia.broker.management.json_text import read_json
from orthia.broker.quoting import quoted

STRING: Final = "java.lang.String"
STRINGS: Final = "[Ljava.lang.String;"
LONG, INT, BOOLEAN, VOID = "long", "int", "boolean", "void"
SOME_INT, SOME_LONG, SOME_FLAG = "java.lang.Integer", "java.lang.Long", "java.lang.Boolean"
"""Null is one of them."""
MAP: Final = "java.util.Map"


def converted(value: Any, kind: str) -> Any:
    """Return an argument as a type; raises ValueError."""
    if value is None:
        if kind in (INT, LONG, BOOLEAN):
            raise ValueError(f"null is no {kind}")
        return None
    if kind in (INT, LONG, SOME_INT, SOME_LONG):
        found = value
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
            found = int(value)
        bits = 64 if kind in (LONG, SOME_LONG) else 32
        if isinstance(found, int) and not isinstance(found, bool) and -1 <= found >> (bits - 1) < 1:
            return found
    elif kind in (BOOLEAN, SOME_FLAG):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif kind == STRING:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float | dict | list):
            return json.dumps(value)
    elif isinstance(value, dict):
        return value
    elif isinstance(value, str):
        found = read_json(value)
        if isinstance(found, dict):
            return found
    raise ValueError(f"{quoted(json.dumps(value)[:100])} is no {kind}")


def is_of(value: Any, kind: str) -> bool:
    """Return whether a value is of a type as it is, not only in another form."""
    if value is None:
        return kind not in (INT, LONG, BOOLEAN)
    if kind in (BOOLEAN, SOME_FLAG):
        return isinstance(value, bool)
    if kind in (INT, LONG, SOME_INT, SOME_LONG):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str if kind == STRING else dict)
