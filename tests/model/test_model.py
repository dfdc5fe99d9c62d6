"""The protocol's model holds in its small configurations, and each mechanism in it is needed."""

import re

import pytest

from tests.model.spin import MODEL, PROPERTIES, REFUTED, Configuration, check, without

README = (MODEL.parent / "README.md").read_text()

QUICK = (
    "TOKEN_MATCH",
    "DEADLINE_BEFORE_REQUEST",
    "TOKEN_CHECK",
    "SHARE_LOCK",
    "FENCE_FIRST",
    "GRACE",
)
"""`make model` tries them all."""


def test_every_property_holds_for_two_nodes() -> None:
    """In all states, and in as many as the document says."""
    outcome = check(Configuration())
    assert outcome.violated is None
    assert f"{outcome.states:,}" in README


def test_after_the_faults_one_node_is_live() -> None:
    """Within one expiration, whichever other node stands still for ever."""
    assert check(Configuration(liveness=True)).violated is None


@pytest.mark.parametrize("mechanism", QUICK)
def test_without_a_mechanism_a_property_breaks(mechanism: str) -> None:
    """The model has teeth: a protocol that lacks it is refuted."""
    assert check(without(mechanism)).violated == REFUTED[mechanism]


def test_a_stopwatch_that_lags_beyond_its_margin_is_refuted() -> None:
    """The bound on the rate of the clocks is needed."""
    assert check(Configuration(defines=("LAG=1",))).violated == "deadline_after_expiry"


def test_the_document_tells_of_every_mechanism_and_property() -> None:
    """Each switch of the model has its line, with what breaks without it."""
    switches = set(re.findall(r"WITHOUT_([A-Z_]+)", MODEL.read_text()))
    told = dict(re.findall(r"^\| `([A-Z_ ]+)` \|.*\| `([\w=]+)` \|$", README, flags=re.MULTILINE))
    assert told == REFUTED
    assert switches == {switch for mechanism in REFUTED for switch in mechanism.split()}
    for name in PROPERTIES:
        assert f"`{name}`" in README
