"""The stores and their locker, read from a valid document."""

from collections.abc import Mapping
from typing import Any, Final

from orthia.config.document import Node, local_name
from orthia.config.pool import Place, place
from orthia.config.sections import Sections, child_of
from orthia.config.store_settings import (
    CustomLockerSettings,
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    LeaseDatabaseLockerSettings,
    LockerSettings,
    RetentionSettings,
    SharedFileLockerSettings,
)
from orthia.config.vocabulary import value_kinds

LOCKERS: Final[Mapping[str, type[LockerSettings]]] = {
    "lease-database-locker": LeaseDatabaseLockerSettings,
    "database-locker": DatabaseLockerSettings,
    "shared-file-locker": SharedFileLockerSettings,
    "custom-locker": CustomLockerSettings,
}
"""The elements of ``locker`` and the settings they are read into."""


def read_database_store(sections: Sections) -> DatabaseStoreSettings | None:
    """Return ``store/database-store``; None if it is not there or, with a problem, unusable."""
    path = "core/store/database-store"
    node = sections.section(path)
    if node is None:
        return None
    given = sections.values_of(node, path)
    _read_data_source(sections, node, path, given)
    given["locker"] = read_locker(sections, path)
    given["journal_retention"] = _retention(sections, f"{path}/journal-retention")
    if "jdbc_user" in given:
        with sections.problems.noting(sections.locate(f"{path}/jdbc-user"), "jdbc-user"):
            given["jdbc_user"] = sections.values.plain(given["jdbc_user"])
    if "jdbc_connection_url" not in given:
        if f"{path}/jdbc-connection-url" not in sections.locations:
            sections.note(node, "lacks <jdbc-connection-url>; expected a JDBC or SQLAlchemy URL")
        return None
    url = given["jdbc_connection_url"]
    where = sections.locate(f"{path}/jdbc-connection-url")
    sections.ignored += [
        (where, f"jdbc-connection-url's {name}") for name in url.ignored_properties
    ]
    return DatabaseStoreSettings(**given)


def read_locker(sections: Sections, store: str) -> LockerSettings | None:
    """Return the locker inside the store at this path."""
    section = sections.section(f"{store}/locker")
    if section is None or not len(section):
        return None
    node = section[0]
    kind = local_name(node)
    path = f"{store}/locker/{kind}"
    sections.locations[path] = sections.at(node)
    given = sections.attributes_of(node, path)
    if "jdbc_user" in given:
        given["jdbc_user"] = sections.values.plain(given["jdbc_user"])
    if kind == "custom-locker":
        given["properties"] = {str(one.get("key")): str(one.get("value")) for one in node}
    return LOCKERS[kind](**given)


def _retention(sections: Sections, path: str) -> RetentionSettings | None:
    node = sections.section(path)
    return None if node is None else RetentionSettings(**sections.attributes_of(node, path))


def _read_data_source(sections: Sections, node: Node, path: str, given: dict[str, Any]) -> None:
    section = child_of(node, "data-source-properties")
    kept: dict[str, str] = {}
    for one in () if section is None else section:
        sections.locations[f"{path}/data-source-properties"] = sections.at(one)
        name = str(one.get("key")).strip()
        with sections.noting(one):
            value = sections.values.plain(str(one.get("value")))
            match place(name, value):
                case Place.POOL:
                    kept[name] = value
                case Place.IGNORED:
                    sections.ignored.append((sections.at(one), f"data-source-property {name}"))
                case element:
                    sections.locations.setdefault(f"{path}/{element}", sections.at(one))
                    read = sections.values.read(value_kinds()[f"{path}/{element}"], value)
                    given.setdefault(element.replace("-", "_"), read)
    given["data_source_properties"] = kept
