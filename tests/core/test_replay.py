"""A replay believes its own markers, and nobody else's."""

import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orthia.broker.client.checkpoint import Checkpoint, default_checkpoint
from orthia.broker.client.connection import BrokerAddress, BrokerRefused, Connection, ServerFrame
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.replay import Replay, ReplayMessage, ReplayReport, UnprovenMarkers
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.config import ConfigurationError
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.support import Client

MARKERS = "/queue/orthia.replay.one"
TARGET = "/queue/again"
TOTAL = 25


class _CoreConnection:
    """A connection to a core of this process; what ``Replay`` uses of one."""

    address = "core"

    def __init__(self, core: CoreUnderTest, **login: Any) -> None:
        self._client = Client(core, **login)

    def send(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        lines = header_lines(headers).decode()
        self._client.session.receive(f"{command}\n{lines}\n".encode() + body + b"\0")
        self._client.core.settle()

    def exchange(self, timeout_seconds: float) -> list[ServerFrame]:
        del timeout_seconds
        frames = [
            ServerFrame(
                one.command, {key.decode(): one.get(key) or "" for key in one.raw}, one.body
            )
            for one in self._client.frames()
        ]
        for frame in frames:
            if frame.command == "ERROR":
                raise BrokerRefused(frame.body.decode())
        return frames

    def close(self) -> None:
        self._client.session.connection_lost()
        self._client.core.settle()


class CoreLink(FailoverLink):
    """Connects to a core of this process."""

    def __init__(self, core: CoreUnderTest, **login: str) -> None:
        super().__init__([])
        self._core = core
        self._credentials = login

    def connect(self) -> Connection:
        """Connect."""
        return cast("Connection", _CoreConnection(self._core, **self._credentials))


def messages(through: int) -> Iterable[ReplayMessage]:
    """Give the messages above a place."""
    for place in range(through + 1, TOTAL + 1):
        yield ReplayMessage(place, TARGET, {"number": f"{place}"}, b"")


class KilledError(Exception):
    """Stands for the end of the sender's process."""


class Story:
    """Replays of one name, from hosts that each have a directory for checkpoints."""

    def __init__(self, core: CoreUnderTest, directory: Path) -> None:
        self.core = core
        self.directory = directory
        self.told: list[str] = []

    def replay(self, host: str = "a", *, dies_after: int = TOTAL, **login: str) -> ReplayReport:
        """Run; after that many messages the sender is killed."""
        sent = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            if sent >= dies_after:
                raise KilledError

        options: Any = {"on_sent": count} if dies_after < TOTAL else {}
        return Replay(
            CoreLink(self.core, **login),
            "one",
            messages,
            checkpoint=Checkpoint(self.directory / host / "one.secret", "one"),
            chunk=10,
            say=self.told.append,
            **options,
        ).run()

    def sent(self) -> list[int]:
        """Return the numbers in the target queue, in order."""
        received = self.core.consume(TARGET).received
        return [int(one.record.head.partition(b"number:")[2].split(b"\n")[0]) for one in received]

    def plant(self, place: str, proof: str | None = None, *, times: int = 1) -> None:
        """Send a marker as anybody could."""
        headers = {"orthia-replayed-through": place}
        if proof is not None:
            headers["orthia-replay-mac"] = proof
        for _ in range(times):
            self.core.send(MARKERS, "", headers=header_lines(headers))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Give a broker, and hosts without any checkpoint."""
    return Story(CoreUnderTest(), tmp_path)


def test_a_replay_goes_on_where_it_was(story: Story) -> None:
    """Its own marker is proven by the file its first run left."""
    with pytest.raises(KilledError):
        story.replay(dies_after=10)
    report = story.replay()
    assert (report.sent, report.through) == (TOTAL - 10, TOTAL)
    assert story.replay().sent == 0
    assert story.sent() == list(range(1, TOTAL + 1))
    assert story.told == []


@pytest.mark.parametrize("place", ["25", "999999999", "9" * 40, "x", "-1", "\u0663"])
@pytest.mark.parametrize("proof", [None, "", "0" * 64, "\u0663"])
def test_a_planted_marker_does_not_end_a_replay_well(
    story: Story, place: str, proof: str | None
) -> None:
    """Before its first run: it says that there is one, and sends nothing until it has a name."""
    story.plant(place, proof)
    for _ in range(2):
        with pytest.raises(UnprovenMarkers, match=r"Nothing was sent now.*take another --name"):
            story.replay()
    assert story.sent() == []


@pytest.mark.parametrize("place", ["25", "9" * 40, "x"])
def test_a_marker_planted_into_a_replay_counts_for_nothing(story: Story, place: str) -> None:
    """Whoever runs it is told; every message arrives once."""
    with pytest.raises(KilledError):
        story.replay(dies_after=10)
    story.plant(place, "0" * 64, times=3)
    assert story.replay().through == TOTAL
    assert story.sent() == list(range(1, TOTAL + 1))
    (told,) = story.told
    assert told.startswith("removed 3 markers in /queue/orthia.replay.one that ")
    assert story.replay().sent == 0
    assert len(story.told) == 1


def test_a_flood_of_planted_messages_keeps_no_replay_from_its_marker(story: Story) -> None:
    """More than a subscription may hold: they are removed as they come."""
    with pytest.raises(KilledError):
        story.replay(dies_after=10)
    story.plant("25", times=6_000)
    story.core.send(MARKERS, *("junk" for _ in range(6_000)))
    assert story.replay().through == TOTAL
    assert story.sent() == list(range(1, TOTAL + 1))


def test_a_flood_before_the_first_run_is_told_of(story: Story) -> None:
    """And not waited for."""
    story.plant("25", times=11_000)
    with pytest.raises(UnprovenMarkers, match="there are 1000 markers"):
        story.replay()


def test_a_replay_of_many_chunks_goes_on_and_keeps_one_marker(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from an Orthia that left a marker for each chunk, more than a subscription may hold."""
    monkeypatch.setattr("orthia.broker.client.replay._MOST_MARKERS", 2)
    with pytest.raises(KilledError):
        story.replay(dies_after=20)
    checkpoint = Checkpoint(story.directory / "a" / "one.secret", "one")
    for place in range(12_500):
        story.plant(f"{place % 20}", checkpoint.proof(place % 20))
    report = story.replay()
    assert (report.sent, report.through) == (TOTAL - 20, TOTAL)
    assert story.sent() == list(range(1, TOTAL + 1))
    (marker,) = story.core.consume(MARKERS).received
    assert b"orthia-replayed-through:25\n" in marker.record.head
    assert story.told == []


def test_markers_are_made_one_while_a_replay_runs(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume after many chunks has few to take."""
    monkeypatch.setattr("orthia.broker.client.replay._MOST_MARKERS", 2)
    with pytest.raises(KilledError):
        # Of three chunks the third is the last that makes a marker.
        story.replay(dies_after=TOTAL - 1)
    assert len(story.core.consume(MARKERS).received) <= 2


def test_an_old_marker_that_is_sent_again_takes_nothing_back(story: Story) -> None:
    """It is proven, and says less than the newest."""
    with pytest.raises(KilledError):
        story.replay(dies_after=10)
    old = story.core.consume(MARKERS).received[-1].record.head
    again = Story(CoreUnderTest(), story.directory)
    again.core.send(MARKERS, "", headers=old)
    assert again.replay().sent == TOTAL - 10
    again.core.send(MARKERS, "", "", headers=old)
    report = again.replay()
    assert (report.sent, report.through) == (0, TOTAL)
    assert again.replay().sent == 0


def test_a_proof_is_of_its_place_and_name(tmp_path: Path) -> None:
    """Neither can be changed, and no other secret proves it."""
    one = Checkpoint(tmp_path / "one.secret", "one")
    one.keep()
    other = Checkpoint(tmp_path / "one.secret", "other")
    assert one.proves("7", one.proof(7))
    assert not one.proves("8", one.proof(7))
    assert not other.proves("7", one.proof(7))
    assert not Checkpoint(tmp_path / "two.secret", "one").proves("7", one.proof(7))


def test_another_host_is_told_how_to_go_on(story: Story) -> None:
    """With the file of the first it goes on; without, it sends nothing twice."""
    with pytest.raises(KilledError):
        story.replay(dies_after=10)
    with pytest.raises(UnprovenMarkers, match=r"all up to id '10' was sent.*as --checkpoint"):
        story.replay("b")
    (story.directory / "b").mkdir()
    copied = story.directory / "b" / "one.secret"
    copied.write_bytes((story.directory / "a" / "one.secret").read_bytes())
    assert story.replay("b").sent == TOTAL - 10
    assert story.sent() == list(range(1, TOTAL + 1))


def test_a_checkpoint_is_its_users_own(tmp_path: Path) -> None:
    """Whoever can read it can forge markers; it is there before the first of them."""
    file = tmp_path / "state" / "one.secret"
    checkpoint = Checkpoint(file, "one")
    assert checkpoint.is_new
    assert not file.exists()
    checkpoint.keep()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    again = Checkpoint(file, "one")
    assert not again.is_new
    assert again.proof(1) == checkpoint.proof(1)


@pytest.mark.parametrize("content", ["", "abc", "g" * 64, "\u0663" * 64])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: str) -> None:
    """A new secret in its place would disown the markers that are there."""
    file = tmp_path / "one.secret"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="is not a checkpoint of a replay"):
        Checkpoint(file, "one")


def test_nothing_is_sent_when_the_checkpoint_cannot_be_written(story: Story) -> None:
    """The error names the file."""
    (story.directory / "a").write_text("no directory")
    with pytest.raises(OSError, match="Not a directory"):
        story.replay()
    assert story.sent() == []


def test_where_a_checkpoint_is_without_being_told() -> None:
    """Where a user's state is, by the XDG base directories."""
    assert default_checkpoint("one", {"XDG_STATE_HOME": "/s"}) == Path(
        "/s/orthia/replay/one.secret"
    )
    home = Path.home()
    assert default_checkpoint("a", {}) == home / ".local/state/orthia/replay/a.secret"


def test_a_message_of_an_older_journal_can_be_sent_again() -> None:
    """It may have a NUL in a header, which no broker takes; what STOMP can say is kept."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, BrokerAddress("127.0.0.1", 1))
        connection.send("SEND", {"a\0b": "c\0d\re:\n"}, b"x\0")
        connection.exchange(0)
        assert theirs.recv(1_000) == b"SEND\na b:c d\\re\\c\\n\n\nx\0\0"


def test_who_may_not_manage_runs_no_replay(tmp_path: Path) -> None:
    """The error names permission and address, and nothing was sent."""
    kinds = ("send", "consume", "createAddress", "createDurableQueue")
    settings = replace(
        SETTINGS,
        security_enabled=True,
        users=(User("app", Secret("a"), frozenset({"apps"})),),
        security_settings=(SecuritySetting("#", dict.fromkeys(kinds, frozenset({"apps"}))),),
    )
    story = Story(CoreUnderTest(settings), tmp_path)
    with pytest.raises(BrokerRefused, match=r"'manage' on address 'orthia\.replay\.one'"):
        story.replay(login="app", passcode="a")
