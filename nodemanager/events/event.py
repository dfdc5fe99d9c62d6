"""What every event is: a frozen dataclass with a code, a level and its sentence."""

import logging
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from orthia.nodemanager.locks.lease import Lock, State

INFO = logging.INFO
WARNING = logging.WARNING
ERROR = logging.ERROR


@dataclass(frozen=True)
class Event:
    """Something that happened; ``text`` is a format of the fields."""

    code: ClassVar[str] = ""
    level: ClassVar[int] = INFO
    text: ClassVar[str] = ""
    advice: ClassVar[str] = "Nothing."

    @property
    def message(self) -> str:
        """The sentence an operator reads."""
        values = {item.name: _shown(getattr(self, item.name)) for item in fields(self)}
        return self.text.format(**values)

    def details(self) -> dict[str, object]:
        """The fields as JSON has them."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _shown(value: object) -> object:
    plain = _plain(value)
    if plain is None:
        return "unknown"
    return f"{plain:.1f}" if isinstance(plain, float) else plain


def _plain(value: object) -> object:
    if isinstance(value, Lock):
        return value.name.lower()
    if isinstance(value, State):
        return value.value
    return value
