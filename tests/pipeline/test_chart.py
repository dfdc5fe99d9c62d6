"""The holder timeline can be read for one pair and for two hundred."""

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lxml import etree

from orthia.pipeline.history.account import account_of
from orthia.pipeline.history.rows import TABLES, Row, rows_of, unread
from orthia.pipeline.report.chart import (
    Chart,
    Kind,
    OutageSegment,
    PairHistory,
    ServiceSegment,
    short,
    ticks,
)
from orthia.pipeline.report.page import Drawing, html
from orthia.pipeline.report.picture import png
from orthia.pipeline.report.tables import chart_of, on_page, seconds, share, shown
from tests.pipeline.forging import Node, holder, live_lock, lives, us

pytestmark = pytest.mark.extended

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=30)
NOTE = "99.9000 to 99.9100% · 1 outage, out 3.00 s · 1 takeover"


def history(
    name: str, out_seconds: float = 3, nodes: tuple[str, str] = ("a", "b"), *, is_out: bool = False
) -> PairHistory:
    """Return a pair whose first node served until the fifteenth, and then the second."""
    failure = BEGIN + timedelta(days=15)
    again = failure + timedelta(seconds=out_seconds)
    return PairHistory(
        name,
        note=NOTE,
        is_out=is_out,
        out_seconds=out_seconds,
        served=[
            ServiceSegment(BEGIN, failure, nodes[0], f"{nodes[0]} served"),
            ServiceSegment(again, END, nodes[1], f"{nodes[1]} served"),
        ],
        outages=[OutageSegment(failure, again, Kind.OUT, "nobody served")],
    )


def drawn(chart: Chart) -> etree._Element:
    """Return the lanes as a tree."""
    return etree.fromstring(Drawing(chart).lanes())


def test_the_nodes_of_one_pair_have_a_lane_each() -> None:
    """One looks at who, then at when; the node's name comes before the pair's id."""
    lanes = Chart(BEGIN, END, [history("613cdfeb-50cc-4af2-876d-d71814b9dc6f")]).lanes()
    assert [lane.label.split(" · ")[0] for lane in lanes] == ["a", "b"]
    assert [lane.note for lane in lanes] == [NOTE, ""]
    assert all(lane.outages for lane in lanes), "nobody served: neither of them did"


def test_two_hundred_pairs_have_a_lane_each_the_worst_on_top() -> None:
    """Whoever is out now, then what was out for longest."""
    pairs = [history(f"pair-{number:03d}", out_seconds=number) for number in range(200)]
    pairs[7].is_out = True
    lanes = Chart(BEGIN, END, pairs).lanes()
    assert len(lanes) == 200
    assert [lane.label for lane in lanes[:3]] == ["pair-007", "pair-199", "pair-198"]


def test_a_short_outage_in_a_long_period_can_be_seen() -> None:
    """Three seconds of thirty days are a tenth of a millipixel; the mark can be seen."""
    bars = [
        one
        for one in drawn(Chart(BEGIN, END, [history("pair")])).iter()
        if one.get("fill") == Kind.OUT.colour
    ]
    assert bars
    assert all(float(one.get("width", "0")) >= 2 for one in bars)


def test_an_outage_that_begins_at_the_very_end_is_inside_the_plot() -> None:
    """It goes on: the mark is not outside of the period."""
    pair = PairHistory("pair", outages=[OutageSegment(END, END, Kind.OUT, "nobody serves")])
    chart = Chart(BEGIN, END, [pair])
    (bar,) = (one for one in drawn(chart).iter() if one.get("fill") == Kind.OUT.colour)
    width = float((drawn(chart).get("viewBox") or "").split()[2])
    assert float(bar.get("x", "0")) + float(bar.get("width", "0")) <= width


@pytest.mark.parametrize(
    "name", ["p", "613cdfeb-50cc-4af2-876d-d71814b9dc6f", "W" * 100, "注文" * 40, "a.b" * 50]
)
def test_no_label_and_no_note_is_cut_off(name: str) -> None:
    """Both are text in columns as wide as their texts; a name that is too long loses its middle."""
    drawing = Drawing(Chart(BEGIN, END, [history(name, nodes=("node-a", "node-b"))]))
    label, _ = drawing.labels()
    assert label == f"<div>{short(f'node-a · {name}')}</div>"
    assert list(drawing.notes()) == [f"<div>{NOTE}</div>", "<div>&nbsp;</div>"]


def test_the_times_are_inside_the_plot() -> None:
    """Those near an end grow away from it."""
    found = " ".join(Drawing(Chart(BEGIN, BEGIN + timedelta(seconds=8), [])).axis())
    assert "left:0.0000%;transform:translateX(-0%)" in found
    assert "left:100.0000%;transform:translateX(-100%)" in found
    assert "left:50.0000%;transform:translateX(-50%)" in found


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    """Names of nodes begin or end alike."""
    text = short("x" * 40 + "-one" + "y" * 40 + "-end")
    assert len(text) == 48
    assert text.startswith("xxx")
    assert text.endswith("y-end")
    assert short("short") == "short"
    whole = "node-a · 613cdfeb-50cc-4af2-876d-d71814b9dc6f"
    assert short(whole) == whole


def test_names_cannot_break_the_page() -> None:
    """A node may be called anything."""
    evil = history("<script>alert(1)</script>", nodes=('"><b>', "&"))
    page = html(
        Chart(BEGIN, END, [evil]), [("Takeovers", [{"cause": "<i>", "ms": 1.5, "n": None}])]
    )
    assert "<script>" not in page
    assert "<td><i>" not in page
    assert "&lt;script&gt;" in page


def test_the_page_says_what_its_colours_mean() -> None:
    """Those that are on it, and how many pairs it is of."""
    page = html(Chart(BEGIN, END, [history("one")]), [])
    assert "1 pair," in page
    assert Kind.OUT.meaning in page
    assert Kind.UNKNOWN.meaning not in page
    assert "2 pairs," in html(Chart(BEGIN, END, [history("one"), history("two")]), [])


@pytest.mark.parametrize("seconds_", [5, 70, 3_600, 90_000, 86_400 * 9, 86_400 * 31, 86_400 * 900])
def test_the_axis_has_a_few_round_labels(seconds_: int) -> None:
    """From seconds to years there are some ticks, and not too many."""
    marks = ticks(BEGIN, BEGIN + timedelta(seconds=seconds_))
    assert 2 <= len(marks) <= 10
    assert len({label for _, label in marks}) == len(marks)


def test_a_picture_is_higher_for_more_pairs_whatever_they_are_called(tmp_path: Path) -> None:
    """And no wider; a dollar means no formula, and a letter that a font lacks is no warning."""
    sizes = []
    for count in (41, 200):
        names = ["注文", "$\\frac{a$", *(f"pair-{number:03d}" for number in range(count))]
        path = tmp_path / f"{count}.png"
        png(Chart(BEGIN, END, [history(name, nodes=("$x", "y$")) for name in names]), path)
        assert path.read_bytes().startswith(b"\x89PNG")
        sizes.append(struct.unpack(">II", path.read_bytes()[16:24]))
    (width, low), (same, high) = sizes
    assert width == same
    assert high > 3 * low


def test_a_pair_without_events_in_the_period_is_an_empty_lane(tmp_path: Path) -> None:
    """Nothing to show is no error."""
    assert "<svg" in Drawing(Chart(BEGIN, BEGIN, [PairHistory("quiet")])).lanes()
    assert "None." in html(Chart(BEGIN, END, []), [("Takeovers", [])])
    png(Chart(BEGIN, BEGIN, []), tmp_path / "nothing.png")


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (1.0, 1.0, "100.0000%"),
        (0.9999999, 1.0, "99.9999 to 100.0000%"),
        (0.5, 0.5, "50.0000%"),
        (0.0, 1.0, "0.0000 to 100.0000%"),
        (0.99995, 0.99995, "99.9950%"),
    ],
)
def test_an_availability_is_a_range_where_it_is_not_known(
    least: float, most: float, text: str
) -> None:
    """And only what is all is shown as all."""
    assert share(least, most) == text


def test_a_duration_is_a_range_where_it_is_not_known() -> None:
    """In seconds, as people say it."""
    assert seconds(None) is None
    assert seconds(2_500.0) == "2.50 s"
    assert seconds(4_000.0, 2_000.0) == "2.00 to 4.00 s"
    assert seconds(5_544_420.0, 2_510.0) == "3 to 5,544 s"


def tables() -> dict[str, list[Row]]:
    """Return the tables of a pair that is out after a takeover, and of one that was not read."""
    first = Node("a").becomes_live(0, 1)
    second = Node("b").becomes_live(118.1, 2, holder("a"), renewed=98, gone=118)
    of_lives = lives(first, second)
    account = account_of(of_lives, live_lock(300, holder("b"), 2, renewed=250), None, us(300))
    found: dict[str, list[Row]] = {name: [] for name in TABLES}
    for name, row in rows_of("pair", account, of_lives):
        found[name].append(row)
    found["availability"].append(unread("away", "no answer"))
    return found


def test_what_is_drawn_is_what_the_tables_tell() -> None:
    """The range of an outage's beginning is paler than what is certain; an open one goes on."""
    chart = chart_of(tables())
    pair, away = chart.pairs
    assert [one.kind for one in pair.outages] == [Kind.MAYBE, Kind.OUT] * 2
    assert pair.is_out
    assert pair.note.startswith("OUT NOW · ")
    assert "2 outages" in pair.note
    assert max(one.end for one in pair.outages) == chart.end
    assert (away.is_read, away.note) == (False, "could not be read")
    assert [lane.label for lane in chart.lanes()] == ["a · pair", "b · pair", "away"]


def test_the_page_says_why_a_pair_is_not_in_it() -> None:
    """Nobody who was sent the page sees what the command said."""
    page = html(chart_of(tables()), on_page(tables()))
    assert "<td>away</td><td>no answer</td>" in page
    assert on_page(tables() | {"availability": []})[0][0] == "Availability"


def test_the_tables_for_people_say_what_is_open() -> None:
    """The pair is OUT, and the outage has no end yet."""
    by_heading = {heading: rows for heading, rows, _ in shown(tables())}
    assert [row["now"] for row in by_heading["Availability"]] == ["OUT", "not read"]
    assert next(row["ended"] for row in by_heading["Outages"]) == "STILL OUT"
    assert by_heading["Outages"][1]["out"] == "16.12 to 20.14 s"
