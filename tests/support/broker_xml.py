"""A broker.xml of which a test writes what matters to it."""

from pathlib import Path

SQLITE = "jdbc:sqlite:orthia.db"
"""A database that is a file beside the broker.xml."""


def broker_xml(directory: Path, core: str = "", *, name: str = "broker.xml") -> Path:
    """Write a broker.xml with these elements in ``core``, which begins on its first line."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">{core}</core>'
        "</configuration>"
    )
    return path


def database_store(inner: str = "", url: str = SQLITE) -> str:
    """Return a store in the database at ``url``, with more elements in it."""
    return (
        f"<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>{inner}"
        "</database-store></store>"
    )
