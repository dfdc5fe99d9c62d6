"""Who gets a place, who makes room, and what each address and user may have."""

from dataclasses import dataclass
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.connections.admission import Admission, MakesRoom, NotAdmitted
from orthia.broker.core.errors import ConnectionLimitExceeded, Refusal
from orthia.broker.security.sources import source_of
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import ClientLimits


@dataclass(eq=False)
class Client:
    """A connection from somewhere."""

    source: str


def test_one_address_leaves_an_eighth_to_others() -> None:
    """Without a setting: of 80 places, 70 logged-in clients of one address and no more."""
    admission = Admission[Client](ClientLimits(), 80)
    for _ in range(70):
        client = Client("10.0.0.1")
        assert admission.admit(client) is None
        admission.log_in(client, None)
    refused = admission.admit(Client("10.0.0.1"))
    assert isinstance(refused, NotAdmitted)
    assert refused.kind is Refusal.ADDRESS
    assert refused.reason == "clients at 10.0.0.1 have max-connections-per-address 70 already"
    for _ in range(10):
        assert admission.admit(Client("10.0.0.2")) is None


def test_one_user_leaves_an_eighth_to_others() -> None:
    """From wherever its connections come; one that is told its last gives its place back."""
    admission = Admission[Client](ClientLimits(), 80)
    clients = [Client(f"10.0.0.{number}") for number in range(80)]
    for client in clients[:70]:
        assert admission.admit(client) is None
        admission.log_in(client, "ada")
    assert admission.admit(clients[70]) is None
    with pytest.raises(ConnectionLimitExceeded, match="'ada' has max-connections-per-user 70 alr"):
        admission.log_in(clients[70], "ada")
    admission.log_in(clients[70], "bob")
    admission.leaves(clients[0])
    assert admission.admit(clients[71]) is None
    admission.log_in(clients[71], "ada")


def test_the_limit_of_a_single_user_wins() -> None:
    """max-sessions of resource-limit-settings: a number, none at all, or any number."""
    limits = ClientLimits(max_connections_per_user=2)
    users = [ResourceLimitSetting(name, n) for name, n in (("ada", 3), ("bob", 0), ("eve", -1))]
    admission = Admission[Client](limits, 1_000, users)

    def log_in(user: str) -> int:
        """Return how many connections the user gets."""
        for number in range(50):
            client = Client("10.0.0.1")
            assert admission.admit(client) is None
            try:
                admission.log_in(client, user)
            except ConnectionLimitExceeded:
                return number
        return 50

    assert [log_in(user) for user in ("ada", "bob", "eve", "zoe")] == [3, 0, 50, 2]


def test_of_an_address_those_without_a_login_make_room() -> None:
    """Above max-unauthenticated-per-address the oldest goes; other addresses notice nothing."""
    admission = Admission[Client](ClientLimits(max_unauthenticated_per_address=5), 100)
    witness = Client("10.0.0.2")
    assert admission.admit(witness) is None
    first = [Client("10.0.0.1") for _ in range(5)]
    for client in first:
        assert admission.admit(client) is None
    for client in first:
        found = admission.admit(Client("10.0.0.1"))
        assert isinstance(found, MakesRoom)
        assert found.leaver is client
        assert "max-unauthenticated-per-address 5" in found.reason
    admission.log_in(witness, "ada")


def test_when_all_places_are_taken_own_connections_make_room_first() -> None:
    """Else the oldest of all that have not logged in; when there is none, nobody."""
    admission = Admission[Client](ClientLimits(max_connections_per_address=10), 4)
    a, b, c, d = (Client(source) for source in ("a", "b", "c", "d"))
    for client in (a, b, c, d):
        assert admission.admit(client) is None
    own, other = Client("b"), Client("e")
    found = admission.admit(own)
    assert isinstance(found, MakesRoom)
    assert found.leaver is b
    found = admission.admit(other)
    assert isinstance(found, MakesRoom)
    assert found.leaver is a
    for client in (c, d, own, other):
        admission.log_in(client, None)
    refused = admission.admit(Client("f"))
    assert isinstance(refused, NotAdmitted)
    assert refused.kind is Refusal.CONNECTIONS


def test_a_full_address_takes_nobodys_place_when_all_places_are_taken() -> None:
    """It would pass its own limit: only those of its own that have not logged in make room."""
    admission = Admission[Client](ClientLimits(max_connections_per_address=2), 4)
    full = [Client("a") for _ in range(2)]
    for client in full:
        assert admission.admit(client) is None
        admission.log_in(client, None)
    for _ in range(2):
        assert admission.admit(Client("b")) is None
    refused = admission.admit(Client("a"))
    assert isinstance(refused, NotAdmitted)
    assert isinstance(admission.admit(Client("c")), MakesRoom)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("xyz"))))
def test_no_limit_is_ever_passed_and_nothing_is_left_behind(
    steps: list[tuple[int, int, str]],
) -> None:
    """Whatever comes, logs in and leaves: the counts are those of who is there."""
    limits = ClientLimits(
        max_connections_per_address=4,
        max_connections_per_user=3,
        max_unauthenticated_per_address=2,
    )
    admission = Admission[Client](limits, 6)
    here: dict[Client, str | None] = {}
    for step, source, user in steps:
        if step == 0:
            client = Client(f"{source}")
            found = admission.admit(client)
            if isinstance(found, MakesRoom):
                assert here.pop(found.leaver) is None, "one that had logged in was ended"
            if not isinstance(found, NotAdmitted):
                here[client] = None
        elif here:
            client = list(here)[source % len(here)]
            if step == 1 and here[client] is None:
                try:
                    admission.log_in(client, user)
                    here[client] = user
                except ConnectionLimitExceeded:
                    assert list(here.values()).count(user) == 3
            elif step == 2:
                admission.leaves(client)
                here[client] = None
            elif step == 3:
                admission.forget(client)
                del here[client]
        assert len(here) <= 6
        for name in "xyz":
            assert list(here.values()).count(name) <= 3
        for number in range(3):
            own = [user for one, user in here.items() if one.source == str(number)]
            assert len(own) <= 4
    for client in list(here):
        admission.forget(client)
    assert not admission._sources
    assert not admission._users
    assert not admission._leaving
    assert not admission._leaving_by_source


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
    ],
)
def test_the_addresses_one_client_can_have_are_one(address: str, source: str) -> None:
    """Of IPv6 the /64 network; an IPv4 address is itself, also where a socket takes both."""
    assert source_of(address) == source


@given(st.integers(0, 2**128 - 1))
def test_neighbours_of_a_network_are_one(number: int) -> None:
    """Whatever the host's half of an address is."""
    address = IPv6Address(number)
    if address.ipv4_mapped is None:
        assert source_of(str(address)) == source_of(str(IPv6Address(number ^ 1)))
