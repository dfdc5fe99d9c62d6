"""``${property:default}``: values that come from outside the file.

As in Artemis a property is looked for among the system properties (``-D``), then in the
environment; those that Artemis' start script sets have defaults. Unlike there a value is taken as
it stands: it is neither substituted again nor read as XML, so a password may hold any character
that XML can have; and a property that is set nowhere is an error.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from orthia.config.characters import outside_xml
from orthia.config.errors import ConfigurationError

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)(\}?)")


class Properties:
    """The values ``${...}`` may stand for."""

    def __init__(
        self,
        system_properties: Mapping[str, str],
        environment: Mapping[str, str],
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``defaults`` are of properties that Artemis' start script sets."""
        self.system_properties = system_properties
        self.environment = environment
        self.defaults = defaults

    def get(self, name: str) -> str | None:
        """Return the value of a property: given by -D, or by the environment, or by default."""
        for values in (self.system_properties, self.environment, self.defaults):
            if name in values:
                return values[name]
        return None

    def substitute(self, text: str) -> str:
        """Return ``text`` with each ``${name:default}`` replaced.

        Raises ConfigurationError naming the property that is set nowhere and has no default.
        """
        return _PLACEHOLDER.sub(self._value_of, text)

    def _value_of(self, placeholder: re.Match[str]) -> str:
        if not placeholder[2]:
            raise ConfigurationError(
                "'${' is not closed; expected ${NAME} or ${NAME:DEFAULT}"
                " (a value that holds '${' itself must come from a property)"
            )
        name, colon, default = (part.strip() for part in placeholder[1].partition(":"))
        value = self.get(name) if name else None
        if value is not None:
            unfit = outside_xml(value)
            if unfit is not None:
                raise ConfigurationError(f"the value of ${{{name}}} has {unfit}")
            return value
        if colon and name:
            return default
        if not name:
            raise ConfigurationError("'${}' names no property; expected ${NAME} or ${NAME:DEFAULT}")
        raise ConfigurationError(
            f"${{{name}}} is not set; expected an environment variable or -D {name}=VALUE,"
            f" or a default as ${{{name}:DEFAULT}}"
        )
