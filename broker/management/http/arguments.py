"""What an operation of the API takes: declared once, checked and documented by that."""

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from orthia.broker.management.errors import WrongArgument
from orthia.broker.quoting import quoted

_NAMES: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean", dict: "object"}


class Argument(NamedTuple):
    """A parameter of the query, or a member of the body."""

    name: str
    kind: type
    """``str``, ``int``, ``bool``, ``dict``, an Enum, or ``list`` of integers."""
    about: str
    required: bool = False

    def schema(self) -> dict[str, Any]:
        """Return its JSON schema."""
        if issubclass(self.kind, Enum):
            return {"type": "string", "enum": [one.value for one in self.kind]}
        if self.kind is list:
            return {"type": "array", "items": {"type": "integer"}}
        return {"type": _NAMES[self.kind]}

    def of_text(self, text: str) -> Any:
        """Return the value of a parameter of the query; raises WrongArgument."""
        value: Any = text
        if self.kind in (int, bool):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
        return self.of_json(value)

    def of_json(self, value: Any) -> Any:
        """Return the value of a member of the body; raises WrongArgument."""
        if issubclass(self.kind, Enum):
            for one in self.kind:
                if isinstance(value, str) and value.lower() == one.value.lower():
                    return one
            expected = ", ".join(one.value for one in self.kind)
            raise WrongArgument(self.name, f"{self._wrong(value)}; expected one of {expected}")
        if self.kind is list:
            if isinstance(value, list) and all(type(one) is int for one in value):
                return value
            raise WrongArgument(self.name, f"{self._wrong(value)}; expected a list of integers")
        if type(value) is not self.kind:
            raise WrongArgument(
                self.name, f"{self._wrong(value)}; expected {_article(_NAMES[self.kind])}"
            )
        return value

    def _wrong(self, value: Any) -> str:
        shown = value if isinstance(value, str) else json.dumps(value)
        return f"{self.name} is {quoted(shown[:100])}"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aio" else f"a {noun}"


def of_query(arguments: Iterable[Argument], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the parameters by their names in Python; raises WrongArgument."""
    by_name = {one.name: one for one in arguments}
    return _checked(
        by_name, {name: by_name[name].of_text(given[name]) for name in _known(by_name, given)}
    )


def of_body(arguments: Iterable[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the body's members by their names in Python; raises WrongArgument."""
    by_name = {one.name: one for one in arguments}
    present = {name: given[name] for name in _known(by_name, given) if given[name] is not None}
    return _checked(by_name, {name: by_name[name].of_json(one) for name, one in present.items()})


def _known(by_name: Mapping[str, Argument], given: Mapping[str, Any]) -> list[str]:
    for name in given:
        if name not in by_name:
            expected = ", ".join(by_name) or "none"
            raise WrongArgument(name, f"there is no {quoted(name[:100])} here; expected {expected}")
    return list(given)


def _checked(by_name: Mapping[str, Argument], values: Mapping[str, Any]) -> dict[str, Any]:
    for name, one in by_name.items():
        if one.required and name not in values:
            raise WrongArgument(name, f"{name} is missing: {one.about}")
    return {name.replace("-", "_"): value for name, value in values.items()}
