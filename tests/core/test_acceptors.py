"""What an acceptor's parameters do to the clients that come by it."""

from dataclasses import replace

from orthia.config.settings import AcceptorSettings
from tests.core.support import SETTINGS
from tests.core.test_server import connected, serving


def test_the_clients_of_an_acceptor_have_its_parameters() -> None:
    """Its heart-beats, its size of large messages and its prefixes; other acceptors keep theirs."""
    special = AcceptorSettings(
        "special",
        "127.0.0.1",
        0,
        heart_beat_to_connection_ttl_modifier=3.0,
        min_large_message_size=2_048,
        anycast_prefixes=("jms.queue.",),
    )
    with (
        serving(replace(SETTINGS, acceptors=(special,))) as server,
        connected(server) as client,
    ):
        client.sendall(b"SEND\ndestination:jms.queue.orders\nreceipt:r\n\na\0")
        assert b"RECEIPT" in client.recv(4_096)
        assert server.depth("orders") == 1
        (one,) = server.call(lambda: list(server.server.clients.all()))
        session = one.protocol
        assert session.options.silence_factor == 3.0
        assert session.options.limits.min_large_message_size == 2_048
