"""What ``pipeline migrate`` is told of its two stores; nothing is copied here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

import pytest
from click.testing import CliRunner

from orthia.broker.cli.pipeline.migrate import migrate
from orthia.config.secrets import mask
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.sources.store import Endpoint, StoreReference


@pytest.mark.parametrize("given", ["hunter2", mask("hunter2")])
def test_the_new_database_has_a_password_of_its_own(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """From the environment, masked or not; each store is reached with its own, the workers too."""
    ends: list[Endpoint] = []
    handed: dict[str, str] = {}

    @contextmanager
    def session(_: object, passwords: Mapping[str, str]) -> Iterator[None]:
        handed.update(passwords)
        yield None

    def copy(_: object, old: Endpoint, new: Endpoint, **__: object) -> list[object]:
        ends.extend((old, new))
        return []

    def reachable(store: DatabaseStoreSettings) -> tuple[StoreReference, dict[str, str]]:
        reference, secret = StoreReference.of(store)
        return reference, {reference.password_variable: str(secret)}

    # By their modules: in their packages the names are those of the command and of the job.
    command = import_module("orthia.broker.cli.pipeline.migrate")
    monkeypatch.setattr(command, "session", session)
    monkeypatch.setattr(command, "reachable", reachable)
    monkeypatch.setattr(import_module("orthia.pipeline.jobs.migrate"), "migrate", copy)
    result = CliRunner().invoke(
        migrate,
        ["--url", "postgresql://old@there/a", "--to-url", "postgresql://new@here/b"],
        env={"ORTHIA_JDBC_PASSWORD": "hunter1", "ORTHIA_JDBC_PASSWORD_TARGET": given},
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    passwords = [end.settings.jdbc_password for end in ends]
    assert [one and one.reveal() for one in passwords] == ["hunter1", "hunter2"]
    variables = [end.reference.password_variable for end in ends]
    assert variables == ["ORTHIA_JDBC_PASSWORD", "ORTHIA_JDBC_PASSWORD_TARGET"]
    assert handed == dict(zip(variables, ["hunter1", "hunter2"], strict=True))
    assert "hunter" not in result.output
