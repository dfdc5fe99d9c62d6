"""Artemis' own files of who may log in: found beside ``broker.xml``, and read as Artemis does.

``bootstrap.xml`` names a domain of ``login.config``, whose login modules name files of users. What
``artemis create`` writes is assumed for a file that is not there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orthia.config.document import Document, local_name
from orthia.config.errors import ConfigurationError
from orthia.config.ignored import NotApplied
from orthia.config.login_config import LoginEntry, read_login_config
from orthia.config.login_domains import (
    Answer,
    ControlFlag,
    GuestLoginModule,
    LoginDomain,
    LoginModule,
    who_lets_in,
)
from orthia.config.problems import Location, Problems
from orthia.config.security_settings import CertificateLoginModule, PropertiesLoginModule
from orthia.config.substitution import Properties

BOOTSTRAP: Final = "bootstrap.xml"
LOGIN_CONFIG: Final = "login.config"
DEFAULT_DOMAIN: Final = "activemq"
_ELSE: Final = "other"
"""Java's name of the domain for names that are not in the file."""
_CLASSES: Final = "org.apache.activemq.artemis.spi.core.security.jaas."
_OPTIONS: Final = "org.apache.activemq.jaas."
_CODEC: Final = "org.apache.activemq.artemis.utils.DefaultSensitiveStringCodec"
_DECIDE: Final = frozenset({ControlFlag.REQUIRED, ControlFlag.REQUISITE})
_ACTING: Final = ", ".join(one.value for one in LoginModule)


@dataclass
class ArtemisLogins:
    """Who may log in by Artemis' files."""

    domain: LoginDomain | None = None
    """None where there are no such files, or none that can be used."""
    properties: PropertiesLoginModule | None = None
    certificates: CertificateLoginModule | None = None
    not_applied: list[NotApplied] = field(default_factory=list)


def login_files(directories: Sequence[Path]) -> Path | None:
    """Return ``login.config``, or else the file of users, of the first directory that has one."""
    for directory in directories:
        for name in (LOGIN_CONFIG, PropertiesLoginModule().user):
            if (directory / name).is_file():
                return directory / name
    return None


def read_logins(
    directories: Sequence[Path], instance: Path, properties: Properties, problems: Problems
) -> ArtemisLogins:
    """Return who may log in by the files in the first of ``directories`` that has some."""
    file = login_files(directories)
    if file is None:
        return ArtemisLogins()
    reading = _Reading(file, instance, properties, problems)
    try:
        reading.read()
    except ConfigurationError as error:
        problems.add_of_file(file, error)
    return reading.found


class _Reading:
    """Reads the files of one directory; notes problems and continues."""

    def __init__(
        self, file: Path, instance: Path, properties: Properties, problems: Problems
    ) -> None:
        self.found = ArtemisLogins()
        self._file = file
        self._instance = instance
        self._properties = properties
        self._problems = problems
        self._guest = GuestLoginModule()

    def read(self) -> None:
        """Read them; raises ConfigurationError, with file and line, if a file cannot be read."""
        name, certificate_domain = self._domains()
        if name is None:
            return
        if self._file.name != LOGIN_CONFIG:
            self.found.properties = PropertiesLoginModule(
                self._file, self._file.parent / PropertiesLoginModule().role
            )
            modules: tuple[tuple[LoginModule, ControlFlag], ...]
            modules = ((LoginModule.PROPERTIES, ControlFlag.REQUIRED),)
            self.found.domain = LoginDomain(self._file, name, modules)
            return
        domains = read_login_config(self._file)
        modules = self._modules(domains, name)
        decide = certificate_domain is not None
        if certificate_domain is not None:
            self._certificate_domain(domains, certificate_domain)
        self.found.domain = LoginDomain(
            self._file, name, modules, self._guest, certificates_decide=decide
        )

    def _domains(self) -> tuple[str | None, str | None]:
        """Return the domains ``bootstrap.xml`` names; None for none."""
        path = self._file.parent / BOOTSTRAP
        if not path.is_file():
            return DEFAULT_DOMAIN, None
        document = Document(path, self._properties)
        for node in document.root:
            name = local_name(node)
            where = document.location(node)
            if name == "jaas-security":
                named: list[str] = []
                with self._problems.noting(where, name):
                    named += [
                        self._properties.substitute(str(node.get(one, "")))
                        for one in ("domain", "certificate-domain")
                    ]
                return (named[0] or DEFAULT_DOMAIN, named[1] or None) if named else (None, None)
            if name in _OTHER_MANAGERS:
                self.found.not_applied.append(NotApplied(where, name, _OTHER_MANAGERS[name]))
                return None, None
        return DEFAULT_DOMAIN, None

    def _modules(
        self, domains: Mapping[str, tuple[LoginEntry, ...]], name: str
    ) -> tuple[tuple[LoginModule, ControlFlag], ...]:
        entries = domains.get(name, domains.get(_ELSE))
        if entries is None:
            self.found.not_applied.append(
                NotApplied(
                    Location(self._file, 1),
                    f"domain {name!r}",
                    "is not in this file, so no client can log in with it",
                )
            )
            return ()
        modules = tuple((module, entry.flag) for module, entry in self._acting(entries))
        repeated = {one.value for one, _ in modules if [each for each, _ in modules].count(one) > 1}
        for one in sorted(repeated):
            line = entries[0].line
            self._note(line, one, "is there twice in a domain; expected it once, with all users")
        self._refuse_both(entries, modules)
        return modules

    def _certificate_domain(self, domains: Mapping[str, tuple[LoginEntry, ...]], name: str) -> None:
        modules = self._modules(domains, name)
        if [one for one, _ in modules] not in ([], [LoginModule.CERTIFICATE]):
            line = domains[name][0].line if name in domains else 1
            self._note(
                line, name, "has more for certificates than TextFileCertificateLoginModule alone"
            )

    def _acting(self, entries: Sequence[LoginEntry]) -> Iterator[tuple[LoginModule, LoginEntry]]:
        for entry in entries:
            short = entry.module.rpartition(".")[2]
            known = next((one for one in LoginModule if _CLASSES + one.value == entry.module), None)
            if known is not None:
                with self._problems.noting(Location(self._file, entry.line), short):
                    self._take(known, entry)
                yield known, entry
            elif entry.flag in _DECIDE:
                self._note(
                    entry.line,
                    short,
                    f"is {entry.flag.value} and not available, so no client could log in;"
                    f" expected some of {_ACTING}, or for an identity provider a"
                    " <token-login-module> of urn:orthia in broker.xml",
                )
            else:
                where = Location(self._file, entry.line)
                self.found.not_applied.append(
                    NotApplied(where, short, "is not asked; whom it alone knows cannot log in")
                )

    def _take(self, module: LoginModule, entry: LoginEntry) -> None:
        match module:
            case LoginModule.GUEST:
                self._guest = GuestLoginModule(
                    self._option(entry, f"{_OPTIONS}guest.user", "guest"),
                    self._option(entry, f"{_OPTIONS}guest.role", "guests"),
                    self._is_true(entry, "credentialsInvalidate"),
                )
            case LoginModule.PROPERTIES:
                codec = self._option(entry, f"{_OPTIONS}properties.password.codec", _CODEC)
                if codec.partition(";")[0].strip() != _CODEC:
                    raise ConfigurationError(
                        "has a password.codec that is code of yours; expected none, and passwords"
                        " plain or hashed as `artemis user` writes them"
                    )
                user, role = (
                    self._path(entry, f"{_OPTIONS}properties.{one}", one)
                    for one in ("user", "role")
                )
                reload = self._is_true(entry, "reload")
                self.found.properties = PropertiesLoginModule(user, role, reload)
            case LoginModule.CERTIFICATE:
                user, role = (
                    self._path(entry, f"{_OPTIONS}textfiledn.{one}", "") for one in ("user", "role")
                )
                reload = self._is_true(entry, "reload")
                self.found.certificates = CertificateLoginModule(user, role, reload)

    def _refuse_both(
        self,
        entries: Sequence[LoginEntry],
        modules: Sequence[tuple[LoginModule, ControlFlag]],
    ) -> None:
        """Refuse a domain that wants a certificate and a password of the same client."""
        names = (LoginModule.PROPERTIES, LoginModule.CERTIFICATE)
        both = dict.fromkeys(LoginModule, Answer.SUCCEEDED)
        each = [{**both, one: Answer.FAILED} for one in names]
        wanted = {one for one, _ in modules}
        one_is_enough = any(who_lets_in(modules, answers) for answers in each)
        if wanted.issuperset(names) and who_lets_in(modules, both) and not one_is_enough:
            self._note(
                entries[0].line,
                LoginModule.CERTIFICATE.value,
                "and a password are both required of each client, which is not available;"
                " expected them sufficient",
            )

    def _option(self, entry: LoginEntry, name: str, default: str) -> str:
        return self._properties.substitute(entry.options.get(name, default))

    def _is_true(self, entry: LoginEntry, name: str) -> bool:
        return self._option(entry, name, "false").lower() == "true"

    def _path(self, entry: LoginEntry, name: str, default: str) -> Path:
        given = self._option(entry, name, default)
        if not given:
            raise ConfigurationError(f"lacks the option {name}; expected the path of a file")
        base = self._option(entry, "baseDir", "")
        directory = self._instance / base if base else self._file.parent
        # Java puts an absolute path into the directory, too; a person who writes one means it.
        return directory / given

    def _note(self, line: int, what: str, text: str) -> None:
        self._problems.add(Location(self._file, line), what, text)


_OTHER_MANAGERS: Final = {
    "basic-security": "its users are in Artemis' own journal, and cannot log in here; add them by"
    " `orthia user add`, with <login-modules> of urn:orthia in broker.xml",
    "security-manager": "decides by code of yours, which is not run here, so no client can log in",
}
"""What ``bootstrap.xml`` may have in place of ``jaas-security``, and what happens."""
