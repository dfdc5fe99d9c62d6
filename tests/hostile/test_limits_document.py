"""docs/limits.md says what the code does."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from orthia.broker.connections import client_memory, descriptors, upgrade
from orthia.broker.connections.connection import WRITE_HIGH_BYTES
from orthia.broker.core import destinations
from orthia.broker.core.limits import memory
from orthia.broker.management.http import bounds, server
from orthia.broker.protocols.abc import UNAUTHENTICATED_BYTES
from orthia.broker.protocols.amqp import encoding, receiver, sections, session, types
from orthia.broker.protocols.amqp.options import INCOMING_WINDOW, MAX_SESSIONS
from orthia.broker.protocols.amqp.performatives import MAX_PERFORMATIVE_BYTES
from orthia.broker.protocols.stomp import options
from orthia.broker.security import logins
from orthia.config import document, problems
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.rendering import SPOKEN_DEFAULTS
from orthia.config.settings import AcceptorSettings, ClientLimits, Settings
from orthia.journal.limits import JournalLimits
from orthia.nodemanager import merge

_TEXT = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
_ROWS = {
    name: default
    for names, default in re.findall(r"^\| (.+?) \| (.+?) \|", _TEXT, re.MULTILINE)
    for name in re.findall(r"`([\w-]+)`", names)
}


@pytest.mark.parametrize("limit", [one.name for one in fields(ClientLimits)])
def test_every_limit_stands_there_with_its_default(limit: str) -> None:
    """By the name it has in broker.xml."""
    default = _ROWS[limit.replace("_", "-")]
    if getattr(ClientLimits(), limit) is None:
        assert default == SPOKEN_DEFAULTS[f"core/stomp-limits/{limit.replace('_', '-')}"]
        return
    assert re.match(r"\d+", default)
    assert int(default.split()[0]) == getattr(ClientLimits(), limit)


def test_limits_elsewhere_stand_there_too() -> None:
    """Those of an acceptor, and the memory of messages."""
    acceptor = AcceptorSettings("a", "h", 1)
    assert _ROWS["connectionsAllowed"].startswith(f"{acceptor.connections_allowed} ")
    assert _ROWS["connectionTtl"].startswith(f"{acceptor.connection_ttl} ")
    assert "handshake-timeout" in _ROWS
    longest = acceptor.web_socket.max_frame_payload_length
    assert _ROWS["webSocketMaxFramePayloadLength"] == str(longest)
    (default,) = (one.default for one in fields(Settings) if one.name == "global_max_size")
    assert _ROWS["global-max-size"] == str(default)


@pytest.mark.parametrize(
    "words",
    [
        f"`max-connections` and {descriptors.RESERVED} more",
        f"{options.MAX_CONNECT_BYTES} bytes of headers",
        f"{destinations.MAX_NAME_LENGTH} characters",
        f"{upgrade.MAX_HEAD_BYTES} bytes of a WebSocket's request",
        f"{AcceptorSettings('a', 'h', 1).heart_beat_to_connection_ttl_modifier:g} x what the client"
        " promised",
        f"{WRITE_HIGH_BYTES} bytes and one message",
        f"{JournalLimits().max_waiting_rows} records, {JournalLimits().max_waiting_bytes} bytes",
        f"at least {client_memory.MIN_SHARE // 1024} KiB",
        f"next to nothing for {client_memory.IDLE_SECONDS:g} seconds",
        f"a {client_memory._ACTIVE_PART}th of what they hold",
        f"holds less than {memory.SMALL_CLAIM // 1024} KiB",
        f"waits {logins.FIRST_DELAY_MS} ms",
        f"one user from one address | {logins.MAX_WAITING} |",
        f"as any users who have not logged in from there | {logins.MAX_WAITING_AT_ADDRESS} |",
        f"{logins.MAX_KNOWN} pairs of user and address",
        f"{logins.MAX_ADDRESSES} addresses, and {logins.USER_PLACES} places",
        f"{bounds.MAX_CONNECTIONS} connections, {server.MAX_HEAD_BYTES} bytes of a request",
        f"{document.MAXIMUM_FILE_BYTES} bytes, {document._MAXIMUM_DEPTH} levels,"
        f" {document._MAXIMUM_FILES} included files",
        f"problems told of one file | {problems.MAXIMUM_PROBLEMS} |",
        f"{merge.MAX_LINE_CHARACTERS} characters",
        f"| {AcceptorAmqp().max_frame_size} bytes; {UNAUTHENTICATED_BYTES} before the open |",
        f"carries aside | {MAX_PERFORMATIVE_BYTES} bytes |",
        f"| {types.MAX_DEPTH} deep",
        f"no text or binary | {types._MAX_HARD_KEYS} |",
        f"not detached | {MAX_SESSIONS} each |",
        f"next window of a session | {INCOMING_WINDOW} |",
        f"`amqpCredits`, {AcceptorAmqp().credits} |",
        f"body of a message | {sections.MAX_HEAD_BYTES} bytes, and {sections.MAX_HEAD_VALUES}"
        " values",
        f"sections of a body | {sections._FREE_SECTIONS}, and one more for each"
        f" {sections._SECTION_BYTES} bytes",
        f"read as JSON | {encoding._STRUCTURES_BYTES} bytes, {encoding._STRUCTURES_VALUES} values",
        f"message to the coordinator | {MAX_PERFORMATIVE_BYTES} bytes |",
        f"transaction's id | {receiver._LONGEST_TRANSACTION_ID} bytes",
        f"range: {session._SETTLED_AT_ONCE} deliveries",
    ],
)
def test_limits_that_are_not_configured_are_as_told(words: str) -> None:
    """Each number is the code's."""
    assert words in " ".join(_TEXT.split())
