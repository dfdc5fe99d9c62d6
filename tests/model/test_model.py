"""The protocol's model holds in its small configurations, and each mechanism in it is needed."""

import re

import pytest

from tests.model.spin import MODEL, PROPERTIES, REFUTED, Configuration, check, without

UNLIKE = ("DIFFERENT_TIMERS",)
BACK = ("CLOCK_STEPS",)
FORWARD = ("CLOCK_STEPS", "CLOCK_STEPS_FORWARD")
README = (MODEL.parent / "README.md").read_text()


def test_every_property_holds_for_two_nodes() -> None:
    """In all states, and in as many as the document says."""
    outcome = check(Configuration())
    assert outcome.violated is None
    assert f"{outcome.states:,}" in README


def test_after_the_faults_one_node_is_live() -> None:
    """Within one expiration, whichever other node stands still for ever."""
    assert check(Configuration(liveness=True)).violated is None


@pytest.mark.parametrize("mechanism", REFUTED)
def test_without_a_mechanism_a_property_breaks(mechanism: str) -> None:
    """The model has teeth: a protocol that lacks it is refuted."""
    assert check(without(mechanism)).violated == REFUTED[mechanism]


def test_nodes_of_different_timers_break_no_property() -> None:
    """One renews more seldom and holds its leases longer."""
    assert check(Configuration(defines=UNLIKE)).violated is None


def test_a_step_back_of_the_databases_clock_breaks_no_property() -> None:
    """A lease lasts longer then, and nothing else."""
    assert check(Configuration(defines=BACK)).violated is None


def test_under_a_clock_that_steps_forward_the_fence_is_needed() -> None:
    """With it nothing is missed, as ``make model`` finds; nodes may then believe what is over."""
    unfenced = Configuration(defines=(*FORWARD, "WITHOUT_TOKEN_CHECK"))
    assert check(unfenced).violated == "missed_by_successor"


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
