"""``journal-retention`` in a ``broker.xml``."""

from pathlib import Path

import pytest

from config import ConfigurationError, load
from config.settings import DatabaseStoreSettings, RetentionSettings, RetentionUnit

_FILE = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><store>{}</store>
<security-enabled>false</security-enabled></core></configuration>"""
_DATABASE = """<database-store><jdbc-connection-url>jdbc:sqlite:a.db</jdbc-connection-url>{}
</database-store>"""


def _load(directory: Path, store: str) -> RetentionSettings | None:
    path = directory / "broker.xml"
    path.write_text(_FILE.format(store))
    settings = load(path).store
    assert isinstance(settings, DatabaseStoreSettings)
    return settings.journal_retention


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ("", None),
        ('<journal-retention xmlns="urn:orthia" period="7"/>', RetentionSettings(7)),
        (
            '<journal-retention xmlns="urn:orthia" period="36" unit="HOURS"/>',
            RetentionSettings(36, RetentionUnit.HOURS),
        ),
    ],
)
def test_retention_is_off_unless_configured(
    tmp_path: Path, element: str, expected: RetentionSettings | None
) -> None:
    """A period counts days unless another unit is given."""
    assert _load(tmp_path, _DATABASE.format(element)) == expected


@pytest.mark.parametrize(
    "store",
    [
        _DATABASE.format('<journal-retention xmlns="urn:orthia" period="0"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia" period="1" unit="WEEKS"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia" period="99999"/>'),
        '<file-store><journal-retention xmlns="urn:orthia" period="7"/></file-store>',
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, store: str) -> None:
    """A wrong period or unit, and retention of a file journal, are errors that name the element."""
    with pytest.raises(ConfigurationError, match="journal-retention"):
        _load(tmp_path, store)
