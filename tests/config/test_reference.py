"""The XSD, the settings and the reference say the same."""

from dataclasses import fields
from pathlib import Path

import pytest
from lxml import etree

from orthia.config import (
    AddressSettings,
    ClientLimits,
    DatabaseStoreSettings,
    HaPolicy,
    HealthSettings,
    ResolvedAddressSettings,
)
from orthia.config.store_reading import LOCKERS
from orthia.config.vocabulary import configuration, find, schema, snake_case
from tools.documents.configuration import reference

_ROOT = Path(__file__).parents[2]


def test_the_committed_reference_is_the_generated_one() -> None:
    """docs/configuration.md is what python -m tools.documents.configuration writes."""
    assert (_ROOT / "docs" / "configuration.md").read_text() == reference()


@pytest.mark.parametrize(
    ("path", "holder", "elsewhere"),
    [
        (
            "core/store/database-store",
            DatabaseStoreSettings,
            {"data_source_properties", "journal_retention", "locker"},
        ),
        ("core/address-settings/address-setting", AddressSettings, {"match"}),
        ("core/address-settings/address-setting", ResolvedAddressSettings, set()),
        ("core/health", HealthSettings, {"operators"}),
        ("core/stomp-limits", ClientLimits, set()),
        (
            "core/ha-policy/shared-store/primary",
            HaPolicy,
            {"role", "allow_failback", "restart_backup"},
        ),
        ("core/ha-policy/shared-store/backup", HaPolicy, {"role", "wait_for_activation"}),
    ],
)
def test_every_setting_has_its_element(path: str, holder: type, elsewhere: set[str]) -> None:
    """The simple elements at a place are the fields they are read into, no more and no less."""
    element = configuration()
    for name in path.split("/"):
        element = element.child(name)
    in_file = {
        child.name.replace("-", "_")
        for child in element.children.values()
        if child.kind is not None and not child.is_ignored
    }
    assert in_file == {one.name for one in fields(holder)} - elsewhere


@pytest.mark.parametrize("name", LOCKERS)
def test_every_property_of_a_locker_has_its_attribute(name: str) -> None:
    """The attributes of a locker are the fields they are read into, no more and no less."""
    element = find(f"core/store/database-store/locker/{name}")
    in_file = {snake_case(one.name) for one in element.attributes.values() if not one.is_refused}
    assert in_file == {one.name for one in fields(LOCKERS[name])} - {"properties"}


def test_every_element_is_described() -> None:
    """Each element and attribute with a meaning says it."""
    for path, element in configuration().walk():
        if element.is_ignored or path.endswith(("anycast/queue", "multicast/queue")):
            continue
        assert element.meaning, path
        for attribute in element.attributes.values():
            meaning = attribute.kind.expected if attribute.is_refused else attribute.meaning
            assert meaning, f"{path}/@{attribute.name}"


def test_the_schema_alone_accepts_the_example() -> None:
    """An editor that validates against the shipped XSD accepts broker.xml.example."""
    assert schema().validate(etree.parse(_ROOT / "broker.xml.example")), schema().error_log
