"""Java's ``login.config``: which login modules each domain of users has.

``DOMAIN { MODULE FLAG NAME=VALUE ...; ... };`` with comments of Java, as
javax.security.auth.login.Configuration describes it. Nothing is known here of what a module does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.login_domains import ControlFlag

_MOST_BYTES: Final = 1024 * 1024
_TOKEN: Final = re.compile(
    r"(?P<blank>\s+|//[^\n]*|/\*.*?\*/)"
    r'|"(?P<quoted>(?:[^"\\\n]|\\.)*)"|(?P<sign>[{}=;])|(?P<word>[^\s{}=;"]+)',
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True)
class LoginEntry:
    """A login module of a domain."""

    module: str
    """The name of its Java class."""
    flag: ControlFlag
    options: Mapping[str, str]
    """As they are written: ``${...}`` is not filled in."""
    line: int


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    is_sign: bool = False


def read_login_config(path: Path) -> Mapping[str, tuple[LoginEntry, ...]]:
    """Return the modules of each domain, in order; raises ConfigurationError."""
    return _Parser(path).domains()


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path}: has more than {_MOST_BYTES} bytes")
    return data.decode(errors="replace")


class _Parser:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = self._read(_text_of(path))
        self._place = 0

    def _read(self, text: str) -> list[_Token]:
        found: list[_Token] = []
        place, line = 0, 1
        while place < len(text):
            matched = _TOKEN.match(text, place)
            if matched is None:
                raise ConfigurationError(f"{self._path}:{line}: a quote is not closed")
            if matched["quoted"] is not None:
                found.append(_Token(_ESCAPED.sub(r"\1", matched["quoted"]), line))
            elif matched["sign"] is not None:
                found.append(_Token(matched["sign"], line, is_sign=True))
            elif matched["word"] is not None:
                found.append(_Token(matched["word"], line))
            place = matched.end()
            line += matched[0].count("\n")
        return found

    def domains(self) -> dict[str, tuple[LoginEntry, ...]]:
        found: dict[str, tuple[LoginEntry, ...]] = {}
        while self._place < len(self._tokens):
            name = self._word("the name of a domain")
            if name.text in found:
                raise self._wrong(name, f"the domain {name.text!r} is there twice")
            self._sign("{")
            modules: list[LoginEntry] = []
            while not self._is_sign("}"):
                modules.append(self._module())
            self._sign("}")
            self._sign(";")
            found[name.text] = tuple(modules)
        return found

    def _module(self) -> LoginEntry:
        module = self._word("the class of a login module")
        flag = self._word("required, requisite, sufficient or optional")
        try:
            known = ControlFlag(flag.text.lower())
        except ValueError:
            raise self._wrong(
                flag,
                f"{flag.text!r} is no flag; expected required, requisite, sufficient or optional",
            ) from None
        options: dict[str, str] = {}
        while not self._is_sign(";"):
            name = self._word("the name of an option")
            self._sign("=")
            options[name.text] = self._word(f"a value of {name.text}").text
        self._sign(";")
        return LoginEntry(module.text, known, options, module.line)

    def _next(self) -> _Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _is_sign(self, sign: str) -> bool:
        token = self._next()
        return token is not None and token.is_sign and token.text == sign

    def _sign(self, sign: str) -> None:
        if not self._is_sign(sign):
            raise self._wrong(self._next(), f"expected {sign!r}")
        self._place += 1

    def _word(self, what: str) -> _Token:
        token = self._next()
        if token is None or token.is_sign:
            raise self._wrong(token, f"expected {what}")
        self._place += 1
        return token

    def _wrong(self, token: _Token | None, what: str) -> ConfigurationError:
        last = self._tokens[-1].line if self._tokens else 1
        return ConfigurationError(f"{self._path}:{token.line if token else last}: {what}")
