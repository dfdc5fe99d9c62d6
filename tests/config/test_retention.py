"""``journal-retention`` in a ``broker.xml``."""

from pathlib import Path

import pytest

from orthia.config import ConfigurationError, load
from orthia.config.store_settings import DatabaseStoreSettings, RetentionSettings, RetentionUnit
from tests.support.broker_xml import broker_xml

_DATABASE = """<database-store><jdbc-connection-url>jdbc:sqlite:a.db</jdbc-connection-url>{}
</database-store>"""


def _load(directory: Path, store: str, core: str = "") -> RetentionSettings | None:
    open_to_all = "<security-enabled>false</security-enabled>"
    settings = load(broker_xml(directory, f"{core}<store>{store}</store>{open_to_all}")).store
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
        (
            '<journal-retention xmlns="urn:orthia" period="7" storage-limit="10G"/>',
            RetentionSettings(7, RetentionUnit.DAYS, 10 * 1024**3),
        ),
        (
            '<journal-retention xmlns="urn:orthia" storage-limit="500 MiB"/>',
            RetentionSettings(storage_limit=500 * 1024**2),
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
        _DATABASE.format('<journal-retention xmlns="urn:orthia" unit="DAYS"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia" storage-limit="0"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia" storage-limit="-1"/>'),
        _DATABASE.format('<journal-retention xmlns="urn:orthia" storage-limit="1T"/>'),
        '<file-store><journal-retention xmlns="urn:orthia" period="7"/></file-store>',
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, store: str) -> None:
    """A wrong period or unit, and retention of a file journal, are errors that name the element."""
    with pytest.raises(ConfigurationError, match="journal-retention"):
        _load(tmp_path, store)


def test_no_directory_applies(tmp_path: Path) -> None:
    """The text that names a directory in Artemis is refused, not taken for a place."""
    element = '<journal-retention xmlns="urn:orthia" period="7">data</journal-retention>'
    with pytest.raises(ConfigurationError, match="holds a text or elements; expected attributes"):
        _load(tmp_path, _DATABASE.format(element))


def test_nothing_is_kept_of_what_is_not_stored(tmp_path: Path) -> None:
    """Without persistence there is no journal to keep anything of."""
    kept = _DATABASE.format('<journal-retention xmlns="urn:orthia" period="7"/>')
    off = "<persistence-enabled>false</persistence-enabled>"
    with pytest.raises(ConfigurationError, match=r"journal-retention.*persistence-enabled"):
        _load(tmp_path, kept, off)
