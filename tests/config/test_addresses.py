"""Address settings: what matches, what wins, and what is inherited."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config import (
    AddressResolver,
    AddressSettings,
    DatabaseStoreSettings,
    DatabaseUrl,
    ResolvedAddressSettings,
    RoutingType,
    Settings,
)
from orthia.config.addresses import MatchIndex
from orthia.config.wildcards import WildcardAddresses

_STORE = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/orthia.db"))
_WILDCARDS = WildcardAddresses()
_PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4).map(".".join)
_WORDS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5)


def _settings(*address_settings: AddressSettings) -> Settings:
    return Settings("a", None, _STORE, address_settings=address_settings)


@pytest.mark.parametrize(
    ("match", "address", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("#", "a", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "a.b", False),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.b.#", "a.c.b.c", True),
        ("a.#.b.#", "a.c.c", False),
    ],
)
def test_a_match_matches_words(match: str, address: str, *, expected: bool) -> None:
    """A star is one word, a hash any number of them, none included."""
    assert _WILDCARDS.matches(match, address) is expected
    assert _WILDCARDS.matcher(match)(address) is expected


def _stands_for(wanted: Sequence[str], words: Sequence[str]) -> bool:
    """Match in the plainest way there is, and the slowest."""
    if not wanted:
        return not words
    if wanted[0] == "#":
        return any(_stands_for(wanted[1:], words[taken:]) for taken in range(len(words) + 1))
    first, others = wanted[0], wanted[1:]
    return bool(words) and first in {"*", words[0]} and _stands_for(others, words[1:])


@given(_PATTERNS, _WORDS)
def test_a_match_takes_what_its_words_stand_for(match: str, words: list[str]) -> None:
    """Whichever way it is asked."""
    address = ".".join(words)
    expected = _stands_for(match.split("."), words)
    assert _WILDCARDS.matches(match, address) is expected
    assert _WILDCARDS.matcher(match)(address) is expected


@given(_PATTERNS, _PATTERNS, st.lists(_WORDS.map(".".join), max_size=30))
def test_patterns_cover_and_overlap_as_their_addresses_do(
    match: str, pattern: str, addresses: list[str]
) -> None:
    """What one says of another holds for every address."""
    for address in addresses:
        by_match, by_pattern = (_WILDCARDS.matches(one, address) for one in (match, pattern))
        if by_match and by_pattern:
            assert _WILDCARDS.overlaps(match, pattern)
            assert _WILDCARDS.overlaps(pattern, match)
        if by_pattern and not by_match:
            assert not _WILDCARDS.covers(match, pattern)


@pytest.mark.parametrize(
    ("match", "pattern", "covers", "overlaps"),
    [
        ("#", "a.#", True, True),
        ("a.#", "#", False, True),
        ("a.#", "a.*", True, True),
        ("a.*", "a.#", False, True),
        ("a.*", "a.b", True, True),
        ("a.b", "a.*", False, True),
        ("a.b.#", "a.*.c", False, True),
        ("a.b", "a.c", False, False),
        ("b.#", "a.#", False, False),
        ("*.#", "#", False, True),
    ],
)
def test_a_match_covers_a_pattern(
    match: str, pattern: str, *, covers: bool, overlaps: bool
) -> None:
    """All of its addresses, or some of them."""
    assert _WILDCARDS.covers(match, pattern) is covers
    assert _WILDCARDS.overlaps(match, pattern) is overlaps


def test_the_words_can_be_others() -> None:
    """As ``wildcard-addresses`` says."""
    slashes = WildcardAddresses(delimiter="/", any_words=">", single_word="+")
    assert slashes.matches("a/+/>", "a/b/c/d")
    assert not slashes.matches("a/#", "a/b")
    assert not slashes.is_pattern("a/#")
    assert slashes.is_pattern("a/>")
    assert MatchIndex([AddressSettings("a/>")], slashes).most_specific_first("a/b")


def test_the_most_specific_match_comes_first() -> None:
    """A plain name, then stars, the later the better, then hashes, the longer the better."""
    order = ["a.b.c", "a.b.*", "a.*.c", "*.b.c", "a.b.#", "a.#", "#"]
    candidates = [AddressSettings(match) for match in reversed(order)]
    found = MatchIndex([*candidates, AddressSettings("x.#")]).most_specific_first("a.b.c")
    assert [one.match for one in found] == order


_MATCH_WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4)


@given(st.lists(_MATCH_WORDS, max_size=6), st.lists(_WORDS, max_size=6))
def test_an_index_finds_what_matches(
    all_words: list[list[str]], addresses: list[list[str]]
) -> None:
    """However it looks for it: what comes out is what trying each would give."""
    candidates = [AddressSettings(".".join(words)) for words in all_words]
    index = MatchIndex(candidates)
    for address in map(".".join, addresses):
        found = index.most_specific_first(address)
        assert sorted(map(id, found)) == sorted(
            id(one) for one in candidates if _WILDCARDS.matches(one.match, address)
        )


def test_what_is_unset_is_inherited() -> None:
    """A value comes from the most specific match that sets it."""
    settings = _settings(
        AddressSettings("#", dead_letter_address="DLQ", max_delivery_attempts=3),
        AddressSettings("a.#", max_delivery_attempts=5, redelivery_delay=0),
        AddressSettings("a.b", auto_create_queues=False),
    )
    resolved = AddressResolver(settings).resolve("a.b")
    assert resolved == ResolvedAddressSettings(
        dead_letter_address="DLQ", max_delivery_attempts=5, auto_create_queues=False
    )


def test_a_value_of_zero_or_false_is_set() -> None:
    """Zero and false win over a less specific match, as any other value."""
    settings = _settings(
        AddressSettings("#", redelivery_delay=9, auto_create_addresses=True),
        AddressSettings("a", redelivery_delay=0, auto_create_addresses=False),
    )
    assert AddressResolver(settings).resolve("a").redelivery_delay == 0
    assert AddressResolver(settings).resolve("a").auto_create_addresses is False


def test_without_a_match_the_defaults_hold() -> None:
    """An address nobody configured is created as a queue that keeps what is sent to it."""
    resolved = AddressResolver(_settings(AddressSettings("x", max_delivery_attempts=1))).resolve(
        "a"
    )
    assert resolved == ResolvedAddressSettings()
    assert resolved.default_address_routing_type is RoutingType.ANYCAST
    assert resolved.max_delivery_attempts == 10
