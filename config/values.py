"""Texts of elements and attributes, read as the kinds of values the XSD gives them.

What comes here has passed the XSD; only what a schema cannot judge may still fail.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from orthia.config.address_settings import (
    AddressFullPolicy,
    DivertRoutingType,
    PageFullPolicy,
    RoutingType,
    SlowConsumerPolicy,
    SlowConsumerUnit,
)
from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret, read_secret, unmask
from orthia.config.settings import CriticalAnalyzerPolicy, IoErrorPolicy
from orthia.config.store_settings import JournalType, RetentionUnit
from orthia.config.urls import DatabaseUrl

_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_BYTES: Final = re.compile(r"(-?[0-9]+) ?([kmg]?)i?b?", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """Return the number of bytes in ``text``; K, M and G are powers of 1024, as in Artemis."""
    matched = _BYTES.fullmatch(text)
    if matched is None:
        raise ConfigurationError(f"{text!r} is not a number of bytes; expected 1048576 or 1M")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def read_boolean(text: str) -> bool:
    """Return the truth value of an ``xsd:boolean``."""
    return text in {"true", "1"}


def read_names(text: str) -> frozenset[str]:
    """Return the names of a list separated by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


class ValueReader:
    """Reads values; knows the key of masked ones."""

    def __init__(self, codec_key: str | None) -> None:
        self._codec_key = codec_key
        self._readers: Mapping[str, Callable[[str], object]] = {
            "milliseconds": int,
            "number": int,
            "factor": float,
            "address-full-policy": AddressFullPolicy,
            "page-full-policy": PageFullPolicy,
            "io-error-policy": IoErrorPolicy,
            "critical-analyzer-policy": CriticalAnalyzerPolicy,
            "retention-unit": RetentionUnit,
            "journal-type": JournalType,
            "bytes": read_bytes,
            "boolean": read_boolean,
            "text": str,
            "address-or-none": str,
            "text-or-none": str,
            "password": self.secret,
            "database-url": self.database_url,
            "routing-type": RoutingType,
            "slow-consumer-policy": SlowConsumerPolicy,
            "slow-consumer-unit": SlowConsumerUnit,
            "divert-routing-type": DivertRoutingType,
        }

    def read(self, kind: str, text: str) -> object:
        """Return ``text`` as a value of ``kind``; raises ConfigurationError if it cannot be one."""
        return self._readers[kind](text)

    def secret(self, text: str) -> Secret:
        """Return a password, unmasked; raises ConfigurationError if it is empty."""
        return read_secret(text, self._codec_key)

    def plain(self, text: str) -> str:
        """Return a text that may be masked although it is no secret, as Artemis allows."""
        return unmask(text, self._codec_key).reveal()

    def database_url(self, text: str) -> DatabaseUrl:
        """Return a database URL, which may be masked as a whole."""
        return DatabaseUrl.parse(self.plain(text))
