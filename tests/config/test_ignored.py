"""What Artemis knows and Orthia does not have: told by name, with what happens instead."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia import config
from orthia.config.ignored import CHANGES, HARMLESS
from orthia.config.settings import Settings
from orthia.config.vocabulary import Element, configuration
from tests.support.broker_xml import broker_xml


def _load(directory: Path, core: str) -> Settings:
    """Return the settings of a file whose second line is the first of ``core``."""
    return config.load(broker_xml(directory, f"\n{core}\n"))


def _ignored_keys(element: Element) -> Iterator[str]:
    name = {"master": "primary", "slave": "backup"}.get(element.name, element.name)
    for child in element.children.values():
        if child.is_ignored:
            yield f"{name}/{child.name}"
        yield from _ignored_keys(child)


def test_everything_ignored_is_in_one_of_the_two_lists() -> None:
    """A new element of Artemis has to be judged: whether leaving it out changes anything."""
    harmless = [key for keys in HARMLESS.values() for key in keys]

    assert sorted({*CHANGES, *harmless}) == sorted(set(_ignored_keys(configuration())))
    assert len(harmless) == len(set(harmless))
    assert not set(harmless) & set(CHANGES)


def test_what_changes_something_is_told_by_name_line_and_consequence(tmp_path: Path) -> None:
    """Those of one name stand together; what is at a value that changes nothing is not among it."""
    settings = _load(
        tmp_path,
        """<broker-plugins><broker-plugin class-name="a"/></broker-plugins>
<thread-pool-max-size>30</thread-pool-max-size>
<acceptors><acceptor name="mqtt">tcp://0.0.0.0:1883?protocols=MQTT</acceptor></acceptors>
<address-settings>
<address-setting match="a">
<retroactive-message-count>${DELAY:10}</retroactive-message-count></address-setting>
<address-setting match="b">
<retroactive-message-count>20</retroactive-message-count></address-setting>
<address-setting match="c">
<retroactive-message-count>${DELAY:0}</retroactive-message-count></address-setting>
</address-settings>
<bridges/>""",
    )

    told = [one.removeprefix(f"{tmp_path / 'broker.xml'}:") for one in settings.not_applied]
    assert [one.split(": ")[:2] for one in told] == [
        ["2", "broker-plugins"],
        ["4", "acceptor 'mqtt'"],
        ["7, 9", "retroactive-message-count"],
    ]
    assert told[0].endswith("no code of yours sees messages, sessions or connections")
    ignored = next(one for one in settings.warnings if "harmless" in one)
    assert "thread-pool-max-size (line 3)" in ignored
    assert "retroactive-message-count (line 11)" in ignored
    assert "broker-plugins" not in ignored


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_nothing_is_told_of_a_value_that_changes_nothing(key: str) -> None:
    """Such as exclusive="false": it asks for what Orthia does."""
    assert all(
        config.ignored.what_happens_instead(key, value.upper()) is None
        for value in ("", *CHANGES[key].same_at)
    )
    assert config.ignored.what_happens_instead(key, "something else") == CHANGES[key].happens


NOTHING_OF_IT = """<management-address>activemq.management</management-address>
<persist-id-cache>true</persist-id-cache>
<connection-ttl-override>-1</connection-ttl-override>
<addresses><address name="a"><multicast>
<queue name="b" last-value="false" exclusive="false" non-destructive="false" enabled="true"
  purge-on-no-consumers="false" ring-size="-1" consumers-before-dispatch="0" group-buckets="-1"
  group-rebalance="false" delay-before-dispatch="-1"><durable>true</durable></queue>
</multicast></address></addresses>
<address-settings><address-setting match="a">
<last-value-queue>0</last-value-queue>
<default-last-value-queue>false</default-last-value-queue>
<default-exclusive-queue>false</default-exclusive-queue>
<auto-delete-queues>false</auto-delete-queues><expiry-delay>-1</expiry-delay>
<redelivery-delay-multiplier>1.0</redelivery-delay-multiplier>
</address-setting></address-settings>"""


def test_a_file_that_asks_for_none_of_it_is_told_nothing(tmp_path: Path) -> None:
    """Files of Artemis write out what they do not want; that is what Orthia does."""
    settings = _load(tmp_path, NOTHING_OF_IT)
    assert settings.not_applied == ()


def test_what_is_told_of_created_queues_holds_beside_auto_delete_queues(tmp_path: Path) -> None:
    """Queues that were created for clients do go then: the warning is of the others."""
    core = """<address-settings><address-setting match="#">
<auto-delete-queues>true</auto-delete-queues>
<auto-delete-created-queues>true</auto-delete-created-queues>
</address-setting></address-settings>"""
    (told,) = _load(tmp_path, core).not_applied
    assert "auto-delete-created-queues: a queue that was not created automatically stays" in told
    assert "auto-delete-queues decides about those that were" in told
