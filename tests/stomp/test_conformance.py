"""docs/stomp-conformance.md says what is: each row names a test, and what is refused is."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from orthia.broker.protocols.stomp.headers import HEADERS, Rule
from orthia.config import acceptor_parameters, ignored

_PAGE = Path(__file__).parents[2] / "docs" / "stomp-conformance.md"
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`tests/[\w/]+\.py::test_\w+`")
_WARNED = {key.rpartition("/")[2].removeprefix("@") for key in ignored.CHANGES} | set(
    acceptor_parameters.CHANGES
)
_REFUSED = {one.name for one in HEADERS if one.rule is Rule.REFUSED}


class Row(NamedTuple):
    """One behaviour."""

    what: str
    said: str
    artemis: str
    classic: str
    orthia: str
    shown: str


def rows() -> list[Row]:
    """Return the rows of all tables of behaviours on the page."""
    tables = [one for one in _PAGE.read_text().split("\n\n") if one.startswith("| What |")]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [Row(*(one.strip() for one in line.strip("|").split("|"))) for line in lines]


@pytest.mark.parametrize("row", [pytest.param(one, id=one.what) for one in rows()])
def test_a_row_says_what_is(row: Row) -> None:
    """Tests of other pages look whether the named one is there."""
    assert _TEST.fullmatch(row.shown)
    assert row.artemis
    assert row.classic
    kind = re.match(r"same|different: |refused|warned", row.orthia)
    assert kind, row.orthia
    names = set(_CODE.findall(row.said))
    if kind[0] == "refused" and "selector" not in row.said:
        assert names & (_REFUSED | {"activemq."})
    if kind[0] == "warned":
        assert names & _WARNED


def test_what_is_refused_has_its_row() -> None:
    """A header that acts from now on, or is refused from now on, changes the page."""
    told = {
        name
        for row in rows()
        if row.orthia.startswith("refused")
        for name in _CODE.findall(row.said)
    }
    assert told >= _REFUSED
    acting = {one.name for one in HEADERS if one.rule is Rule.ACTS and "SEND" in one.frames}
    assert not told & acting
