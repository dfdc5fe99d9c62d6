"""What a node reports beside its locks, and the digest by which nodes compare their users."""

import hashlib
import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.node.reporter import Reporter
from orthia.broker.node.users_digest import signature_of, users_digest
from orthia.config.secrets import Secret
from orthia.config.security_settings import PropertiesLoginModule, User
from orthia.config.settings import Settings
from orthia.database import StoreUnavailable
from orthia.nodemanager.abc import NodeManager
from orthia.nodemanager.locks.reports import OutboxReport, Refusal, Report
from tests.core.support import SETTINGS

PAIR = "6b0c7a31-0000-4000-8000-000000000001"


def with_files(directory: Path, users: str, roles: str) -> Settings:
    """Return the settings of a node whose users are in files."""
    module = PropertiesLoginModule(directory / "users", directory / "roles")
    directory.mkdir(exist_ok=True)
    module.user.write_text(users)
    module.role.write_text(roles)
    return replace(SETTINGS, security_enabled=True, properties_login_module=module)


def test_nodes_with_the_same_users_have_the_same_digest(tmp_path: Path) -> None:
    """Whatever the order of lines and the comments are; another pair has another one."""
    one = with_files(tmp_path / "a", "anna = x\nben = y\n", "admin = anna,ben\n")
    other = with_files(tmp_path / "b", "# ours\nben = y\nanna = x\n", "admin = ben, anna\n")
    digest = users_digest(one, PAIR)
    assert digest is not None
    assert len(digest) == 36
    assert users_digest(other, PAIR) == digest
    assert users_digest(one, "another") != digest


@pytest.mark.parametrize(
    ("users", "roles"),
    [
        ("anna = other", "admin = anna"),
        ("anna = x", "guest = anna"),
        ("anna = x\nben = y", "admin = anna"),
    ],
)
def test_another_password_role_or_user_gives_another_digest(
    tmp_path: Path, users: str, roles: str
) -> None:
    """Each of them decides who may do what."""
    one = with_files(tmp_path / "a", "anna = x", "admin = anna")
    other = with_files(tmp_path / "b", users, roles)
    assert users_digest(one, PAIR) != users_digest(other, PAIR)


def test_users_of_the_broker_xml_count_too() -> None:
    """Their passwords are not in any file of users."""

    def digest(password: str) -> str | None:
        user = User("anna", Secret(password), frozenset({"admin"}))
        return users_digest(replace(SETTINGS, security_enabled=True, users=(user,)), PAIR)

    assert digest("x") == digest("x") != digest("y")


def test_a_guess_costs_as_much_as_with_a_hashed_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the database must not find out a short password."""
    rounds: list[int] = []

    def slow(name: str, text: bytes, salt: bytes, iterations: int, length: int) -> bytes:
        rounds.append(iterations)
        return hashlib.sha256(name.encode() + text + salt).digest()[:length]

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", slow)
    users_digest(replace(SETTINGS, security_enabled=True), PAIR)
    assert rounds == [600_000]


def test_files_that_cannot_be_read_have_no_digest(tmp_path: Path) -> None:
    """The node says so itself; nothing is made up for it."""
    settings = with_files(tmp_path, "anna = x", "admin = anna")
    (tmp_path / "users").unlink()
    assert users_digest(settings, PAIR) is None
    assert users_digest(SETTINGS, PAIR) is None, "nobody has to log in"


@dataclass
class Manager:
    """Takes reports; fails while there is an ``error``."""

    error: Exception | None = None
    published: list[Report] = field(default_factory=list)
    log: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(node_id=PAIR))

    def publish(self, report: Report) -> None:
        """Take a report."""
        if self.error is not None:
            raise self.error
        self.published.append(report)

    def message_time_ms(self) -> int:
        """Return the time of the store."""
        return 1_000_000


def test_what_refuses_messages_and_puts_failback_off_is_reported() -> None:
    """As it is when the node looks."""
    manager, refused_by = Manager(), [None, "disk", "max-store-bytes", "database", None]
    api: list[str | None] = [None, *["http://a:8161"] * 4]
    reporter = Reporter(
        lambda: SETTINGS,
        cast("NodeManager", manager),
        lambda: refused_by.pop(0),
        lambda: api.pop(0),
    )
    for _ in range(4):
        reporter.look()
    reporter.failback_put_off(30_000)
    reporter.look()
    assert [one.refusal for one in manager.published] == [
        None,
        Refusal.DISK,
        Refusal.MAX_STORE_BYTES,
        Refusal.DATABASE,
        None,
    ]
    assert [one.api_url for one in manager.published] == [None, *["http://a:8161"] * 4]
    until = datetime.fromtimestamp(1_030, UTC)
    assert [one.failback_put_off_until for one in manager.published] == [*[None] * 4, until]


def test_what_waits_in_the_outbox_is_reported_with_its_rate() -> None:
    """Since the last look; nothing is said while the node is not live."""
    manager = Manager()
    seen = [None, RelayStatus(3, 1_000_000, 10, 0, "full"), RelayStatus(0, None, 35, 0, None)]
    now = [0.0, 1.0, 3.0]
    reporter = Reporter(
        lambda: SETTINGS,
        cast("NodeManager", manager),
        lambda: None,
        outbox=lambda: seen.pop(0),
        clock=lambda: now.pop(0),
    )
    for _ in range(3):
        reporter.look()
    assert [one.outbox for one in manager.published] == [
        None,
        OutboxReport(3, datetime.fromtimestamp(1_000, UTC), 0.0, "full"),
        OutboxReport(0, None, 12.5, None),
    ]


def test_changed_users_are_reported(tmp_path: Path) -> None:
    """The digest is made anew when a file has changed, and only then."""
    settings, manager = with_files(tmp_path, "anna = x", "admin = anna"), Manager()
    reporter = Reporter(lambda: settings, cast("NodeManager", manager), lambda: None)
    reporter.look()
    before = signature_of(settings)
    (tmp_path / "users").write_text("anna = another\n")
    assert signature_of(settings) != before
    reporter.look()
    first, second = (one.users_digest for one in manager.published)
    assert None not in (first, second)
    assert first != second


def test_users_of_a_reloaded_configuration_are_reported(tmp_path: Path) -> None:
    """The digest is of the settings in effect, not of those that the node began with."""
    read, manager = [with_files(tmp_path, "anna = x", "admin = anna")], Manager()
    reporter = Reporter(lambda: read[-1], cast("NodeManager", manager), lambda: None)
    reporter.look()
    read.append(replace(read[0], users=(User("bert", Secret("y"), frozenset({"admin"})),)))
    reporter.look()
    first, second = (one.users_digest for one in manager.published)
    assert None not in (first, second)
    assert first != second


def test_a_store_that_takes_no_report_is_told_of_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody's service depends on it."""
    manager = Manager(StoreUnavailable("no answer"))
    reporter = Reporter(lambda: SETTINGS, cast("NodeManager", manager), lambda: None)
    with caplog.at_level(logging.WARNING):
        reporter.look()
        reporter.look()
        manager.error = None
        reporter.look()
    assert [record.getMessage() for record in caplog.records] == [
        "publishing the state that `orthia status` shows of this node failed: no answer; retrying"
        " every 1 s"
    ]
    assert manager.published == [Report()]
