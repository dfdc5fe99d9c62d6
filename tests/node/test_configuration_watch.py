"""A broker.xml that changes beneath a node: what is taken, what is told, and how often."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from orthia import config
from orthia.broker.cli.unusable import unusable
from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.broker.node.configuration_watch import ConfigurationWatch
from orthia.config.configuration_file import ConfigurationFile
from tests.core.support import CoreUnderTest

_FILE = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><name>a</name>
<persistence-enabled>true</persistence-enabled><security-enabled>false</security-enabled>
<acceptors><acceptor name="stomp">tcp://127.0.0.1:{port}</acceptor></acceptors>
<store><database-store><jdbc-connection-url>jdbc:sqlite:x.db</jdbc-connection-url>
</database-store></store>{core}</core></configuration>"""


def most(messages: int) -> str:
    """Return an address-setting by which another message is refused."""
    return (
        '<address-settings><address-setting match="#">'
        f"<max-size-messages>{messages}</max-size-messages>"
        "<address-full-policy>FAIL</address-full-policy></address-setting></address-settings>"
    )


@dataclass
class Node:
    """A core whose file the test writes, and looks at."""

    path: Path
    first: str = _FILE.format(core="", port=61613)
    applied: list[NewRules] = field(default_factory=list)
    shown: list[int | None] = field(default_factory=list)
    core: CoreUnderTest | None = None
    watch: ConfigurationWatch = field(init=False)

    def __post_init__(self) -> None:
        self.text(self.first)
        load = partial(config.load, self.path, further=unusable)
        file = ConfigurationFile(lambda reads: load(reads=reads))
        read = file.read()
        self.core = CoreUnderTest(read)
        self.watch = ConfigurationWatch(file, read, read, apply=self._apply, show=self.shown.append)

    def write(self, core: str, *, port: int = 61613) -> None:
        """Write the file anew."""
        self.text(_FILE.format(core=core, port=port))

    def text(self, text: str) -> None:
        """Have this in the file; another file each time, however short that is ago."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def look(self) -> None:
        """Look until there is nothing to look at any more."""
        while self.watch.look():
            pass

    def _apply(self, rules: NewRules, done: Callable[[], None]) -> None:
        self.applied.append(rules)
        assert self.core is not None
        self.core.broker.reconfigure(rules, done)
        self.core.settle()


@pytest.fixture
def node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Node:
    """Give a node whose file says nothing of addresses."""
    caplog.set_level("INFO")
    return Node(tmp_path / "broker.xml")


def test_what_changed_is_applied_and_told(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Once: a client meets the new limit, and a file that stays is not read again."""
    node.look()
    assert node.applied == []
    node.write(most(1))
    node.look()
    node.look()
    assert len(node.applied) == 1
    assert node.core is not None
    node.core.send("/queue/a", "1")
    with pytest.raises(Exception, match="max-size-messages 1"):
        node.core.send("/queue/a", "2")
    at = f"{node.path}: address-settings/address-setting[#]"
    assert caplog.messages == [
        f"{at}: added (applied)",
        f"{at}/address-full-policy: not set -> FAIL (applied)",
        f"{at}/max-size-messages: not set -> 1 (applied)",
        f"reloaded {node.path}: changes in effect: 3; waiting for a restart of this node: 0",
    ]
    assert node.shown == [0]


def test_of_very_many_changes_the_first_are_told(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """And how many more there are."""
    node.look()
    many = "".join(f'<address name="a{number}"><anycast/></address>' for number in range(150))
    node.write(f"<addresses>{many}</addresses>")
    node.look()
    assert len(caplog.messages) == 102
    assert caplog.messages[-2] == (
        f"{node.path}: and 50 more changes, of which 0 wait for a restart"
    )


def test_a_file_that_is_being_written_is_left_until_it_stands_still(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told that half of it is no XML."""
    node.text("<configuration")
    assert node.watch.look()
    node.write(most(1))
    assert node.watch.look()
    assert not node.watch.look()
    assert len(node.applied) == 1
    assert "not taken" not in caplog.text


def test_a_file_that_is_wrong_is_refused_whole_and_told_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """With the line; what is right in it waits, too, until it is mended."""
    node.write(most(1) + "\n<max-disk-usage>many</max-disk-usage>")
    for _ in range(3):
        node.look()
    refused = [one for one in caplog.messages if "changed, and nothing of it was applied" in one]
    assert len(refused) == 1
    assert f"{node.path}:6: <max-disk-usage>" in refused[0]
    assert node.applied == []
    assert node.shown == [None]
    node.write(most(1))
    node.look()
    assert len(node.applied) == 1
    assert node.shown == [None, 0]


def test_what_needs_a_restart_is_named_and_counted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as it waits; what is put back waits no more."""
    node.write("", port=61614)
    node.look()
    port = f"{node.path}: acceptors/acceptor[stomp]/port"
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == [f"{port}: 61613 -> 61614 (takes effect when this node is restarted)"]
    node.write(most(9), port=61614)
    node.look()
    assert caplog.text.count("61613 -> 61614") == 1
    assert node.applied[-1].settings.acceptors[0].port == 61613
    node.write(most(9))
    node.look()
    assert f"{port}: 61614 -> 61613 (this node runs with that)" in caplog.messages
    assert node.shown == [1, 1, 0]


def test_changes_that_go_together_only_after_a_restart_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is valid, and what this node would have of it is not."""
    without = _FILE.replace("<persistence-enabled>true", "<persistence-enabled>false")
    node = Node(tmp_path / "broker.xml", without.format(core="", port=61613))
    setting = "<default-non-destructive>true</default-non-destructive>"
    node.write(
        f'<address-settings><address-setting match="#">{setting}</address-setting>'
        "</address-settings>"
    )
    node.look()
    assert node.applied == []
    assert "its changes go together only when this node is restarted" in caplog.text
    assert "persistence-enabled is false" in caplog.text


def test_a_filter_that_cannot_be_read_is_refused(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a node starts, whoever the filter is of."""
    where = "<address>a</address><forwarding-address>b</forwarding-address>"
    node.write(f'<diverts><divert name="d">{where}<filter string="a ="/></divert></diverts>')
    node.look()
    assert "changed, and nothing of it was applied" in caplog.text
    assert "its filter 'a =' is refused" in caplog.text


@pytest.mark.parametrize(
    ("is_pipe", "said"), [(False, "cannot be read"), (True, "is a named pipe; expected a file")]
)
def test_a_file_that_is_gone_changes_nothing(
    node: Node, caplog: pytest.LogCaptureFixture, is_pipe: bool, said: str
) -> None:
    """It is told once, and taken when it is back; to open a pipe would wait for ever."""
    node.path.unlink()
    if is_pipe:
        os.mkfifo(node.path)
    node.look()
    node.look()
    assert caplog.text.count(said) == 1
    node.write(most(1))
    node.look()
    assert len(node.applied) == 1


def test_an_included_file_that_changes_counts(tmp_path: Path) -> None:
    """Artemis looks at the file that includes it alone."""
    part = tmp_path / "part.xml"
    part.write_text('<address-settings xmlns="urn:activemq:core"/>')
    node = Node(tmp_path / "broker.xml")
    node.write('<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="part.xml"/>')
    node.look()
    part.write_text(
        most(1).replace("<address-settings>", '<address-settings xmlns="urn:activemq:core">')
    )
    node.look()
    assert [len(one.settings.address_settings) for one in node.applied] == [0, 1]


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), OSError("no descriptors")])
def test_whatever_reading_raises_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """It is told, and the next change is read."""
    path = tmp_path / "broker.xml"
    path.write_text(_FILE.format(core="", port=1))
    errors: list[Exception] = []

    def load(reads: Callable[[Path], None]) -> config.Settings:
        reads(path)
        if errors:
            raise errors.pop()
        return config.load(path)

    file = ConfigurationFile(load)
    read = file.read()
    watch = ConfigurationWatch(file, read, read, apply=lambda _, done: done())
    errors.append(error)
    path.write_text(_FILE.format(core=most(1), port=1))
    while watch.look():
        pass
    assert f"{type(error).__name__}: {error}" in caplog.text
    path.write_text(_FILE.format(core=most(22), port=1))
    caplog.set_level("INFO")
    while watch.look():
        pass
    assert "reloaded " in caplog.text


def test_a_watch_that_is_stopped_waits_for_nobody(node: Node) -> None:
    """The loop of a node that ends may do nothing more of what it was asked."""
    file = ConfigurationFile(lambda reads: config.load(node.path, reads=reads))
    read = file.read()
    watch = ConfigurationWatch(file, read, read, apply=lambda *_: watch.stop())
    node.write(most(1))
    while watch.look():
        pass
