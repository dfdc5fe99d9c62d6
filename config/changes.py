"""The differences between two readings of a ``broker.xml``, and the effect of each.

Pure: whoever has a running node be as the second says asks here first. The fields of ``Settings``
in ``RELOADED`` are applied while a node runs; every other waits for its next start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final

from orthia.config.address_settings import AddressSettings
from orthia.config.passwords import HashedPassword
from orthia.config.rendering import written
from orthia.config.secrets import Secret, is_secret, without_passwords
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import Settings
from orthia.config.urls import DatabaseUrl

RELOADED: Final = (
    "address_settings",
    "security_settings",
    "role_mappings",
    "users",
    "diverts",
    "addresses",
)
"""Fields of ``Settings`` that a running node applies, in the order in which they are told."""
_NOT_IN_THE_FILE: Final = frozenset({"source", "warnings", "not_applied"})


class Effect(Enum):
    """The effect of a change; the value is what a log line says of it."""

    NOW = "applied"
    NEW_QUEUES = "applied to queues that clients have created from now on"
    RESTART = "takes effect when this node is restarted"
    STORED = "not applied: the queue stays as it was created until it is deleted"
    STAYS = "it stays, with its messages, until it is deleted"


@dataclass(frozen=True)
class Change:
    """One difference."""

    path: str
    """Of the element, as ``address-settings/address-setting[orders.#]/redelivery-delay``."""
    what: str
    """``added``, ``removed``, or the old value and the new; never a password."""
    effect: Effect

    @property
    def needs_restart(self) -> bool:
        """Whether the node continues without it."""
        return self.effect is Effect.RESTART

    def __str__(self) -> str:
        """Return it as a log line says it."""
        return f"{self.path}: {self.what} ({self.effect.value})"


def changes(before: Settings, after: Settings) -> tuple[Change, ...]:
    """Return every difference, those of ``RELOADED`` first."""
    others = {one.name for one in fields(Settings)} - {*RELOADED, *_NOT_IN_THE_FILE}
    found: list[Change] = []
    for name in (*RELOADED, *sorted(others)):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            differences = _Differences(name)
            # None by name: the same elements in another order, of which the first may count.
            found += differences.of(_element(name), _element(name), was, now) or [
                Change(_element(name), "in another order", differences.effect("", ""))
            ]
    return tuple(found)


def reloaded(running: Settings, read: Settings) -> Settings:
    """Return the settings of a ``running`` node that applies what it can of those ``read``."""
    return replace(running, **{name: getattr(read, name) for name in RELOADED})


_FOR_NEW_QUEUES: Final = frozenset(
    one.name.replace("_", "-")
    for one in fields(AddressSettings)
    if (one.name.startswith("default_") and not one.name.endswith("_routing_type"))
    or one.name == "last_value_queue"
)
"""What of an address is asked for when a queue is created."""
_OF_ANY_QUEUE: Final = frozenset({"max-consumers", "filter", "enabled"})
"""Attributes of a declared queue that change while it is there."""
_OF_THE_BINDING: Final = frozenset({"routing-type", "durable", "user"})
"""What is stored with a queue when it is created, and not asked of the file again."""
_ONE_OF: Final = {
    "acceptors": "acceptor",
    "address-settings": "address-setting",
    "addresses": "address",
    "diverts": "divert",
    "queues": "queue",
    "resource-limit-settings": "resource-limit-setting",
    "role-mappings": "role-mapping",
    "security-settings": "security-setting",
    "users": "user",
}
"""What an element is called of which there may be several, by the field that holds them."""
_INLINE: Final = frozenset({"options", "permissions", "queues"})
"""Fields whose own name is no element: what they hold stands in the element around them."""
_KEYS: Final = ("match", "name", "from_role")
"""By what an element is known that there may be several of."""
_STAYS: Final = frozenset({"address", "queue"})


class _Differences:
    """Finds what differs of one field of ``Settings``."""

    def __init__(self, field: str) -> None:
        self._field = field

    def effect(self, kind: str, name: str) -> Effect:
        """Return what becomes of a change of ``name`` in an element of a ``kind``."""
        if self._field not in RELOADED:
            return Effect.RESTART
        if name in _FOR_NEW_QUEUES and kind == "address-setting":
            return Effect.NEW_QUEUES
        if kind != "queue" or name in {"", *_OF_ANY_QUEUE}:
            return Effect.NOW
        return Effect.STORED if name in _OF_THE_BINDING else Effect.RESTART

    def of(self, path: str, name: str, was: Any, now: Any, kind: str = "") -> list[Change]:
        """Return what differs at ``path``, of an element or field ``name`` in one of a ``kind``."""
        if was == now:
            return []
        both = (was, now)
        if name in _ONE_OF and all(isinstance(one, tuple) for one in both):
            return list(self._of_several(path, _ONE_OF[name], was, now))
        if all(isinstance(one, Mapping) for one in both):
            return list(self._of_parts(path, kind, was, now))
        if type(was) is type(now) and is_dataclass(was) and not isinstance(was, DatabaseUrl):
            return list(self._of_parts(path, kind, _parts(was), _parts(now)))
        return [Change(path, _what(name, was, now), self.effect(kind, name))]

    def _of_parts(
        self, path: str, kind: str, was: Mapping[str, Any], now: Mapping[str, Any]
    ) -> Iterator[Change]:
        for part in {**was, **now}:
            name = _element(part)
            at = path if part in _INLINE else f"{path}/{name}"
            yield from self.of(at, name, was.get(part), now.get(part), kind)

    def _of_several(
        self, path: str, kind: str, was: tuple[Any, ...], now: tuple[Any, ...]
    ) -> Iterator[Change]:
        before, after = _by_key(was), _by_key(now)
        for key in {**before, **after}:
            at = f"{path}/{kind}[{key}]"
            if key not in after:
                stays = self._field in RELOADED and kind in _STAYS
                yield Change(at, "removed", Effect.STAYS if stays else self.effect(kind, ""))
            elif key in before:
                yield from self.of(at, kind, before[key], after[key], kind)
            else:
                yield Change(at, "added", self.effect(kind, ""))
                yield from self._of_new(at, kind, after[key])

    def _of_new(self, path: str, kind: str, new: Any) -> Iterator[Change]:
        """Yield what an element says that was not there before, where that is worth a line."""
        if isinstance(new, AddressSettings):
            yield from self.of(path, kind, AddressSettings(new.match), new, kind)
        elif isinstance(new, SecuritySetting):
            yield from self.of(path, kind, SecuritySetting(new.match, {}), new, kind)
        elif queues := getattr(new, "queues", ()):
            yield from self._of_several(path, "queue", (), queues)


def _element(field: str) -> str:
    return field.replace("_", "-")


def _parts(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _by_key(several: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in several:
        key = next(getattr(one, name) for name in _KEYS if hasattr(one, name))
        found[key if key not in found else f"{key} ({len(found)})"] = one
    return found


def _what(name: str, was: Any, now: Any) -> str:
    if is_secret(name) or any(isinstance(one, Secret | HashedPassword) for one in (was, now)):
        return "changed"
    if any(_is_element(one) for one in (was, now)) and None in (was, now):
        return "added" if was is None else "removed"
    before, after = _shown(was), _shown(now)
    return "changed" if before == after else f"{before} -> {after}"  # a password inside it


def _is_element(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, DatabaseUrl)


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, frozenset | tuple):
        return ",".join(sorted(map(written, value))) or "none"
    return "set" if _is_element(value) else without_passwords(written(value))
