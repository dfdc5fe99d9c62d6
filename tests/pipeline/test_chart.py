"""The holder timeline can be read for one pair and for two hundred."""

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lxml import etree

from pipeline.chart import Chart, PairHistory, Segment, html, png, svg, ticks

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=30)


def history(name: str, out_seconds: float = 3, nodes: tuple[str, str] = ("a", "b")) -> PairHistory:
    """Return a pair whose first node served until the fifteenth, and then the second."""
    failure = BEGIN + timedelta(days=15)
    again = failure + timedelta(seconds=out_seconds)
    return PairHistory(
        name,
        availability=0.9999,
        takeovers=1,
        served=[
            Segment(BEGIN, failure, nodes[0], f"{nodes[0]} served"),
            Segment(again, END, nodes[1], f"{nodes[1]} served"),
        ],
        outages=[Segment(failure, again, nodes[1], "nobody served")],
    )


def test_the_nodes_of_one_pair_have_a_lane_each() -> None:
    """One looks at who, then at when; the node's name comes before the pair's id."""
    lanes = Chart(BEGIN, END, [history("613cdfeb-50cc-4af2-876d-d71814b9dc6f")]).lanes()
    assert [lane.label.split(" · ")[0] for lane in lanes] == ["a", "b"]
    assert "99.9900%" in lanes[0].note


def test_two_hundred_pairs_have_a_lane_each_the_worst_on_top() -> None:
    """The page stays readable, and what was out for longest is seen first."""
    pairs = [history(f"pair-{number:03d}", out_seconds=number) for number in range(200)]
    lanes = Chart(BEGIN, END, pairs).lanes()
    assert len(lanes) == 200
    assert [lane.label for lane in lanes[:2]] == ["pair-199", "pair-198"]


def test_a_short_outage_in_a_long_period_can_be_seen() -> None:
    """Three seconds of thirty days are a tenth of a millipixel; the mark is two pixels."""
    drawn = etree.fromstring(svg(Chart(BEGIN, END, [history("pair")])))
    bars = [one for one in drawn.iter() if one.get("fill") == "#d1242f"]
    assert bars
    assert all(float(one.get("width", "0")) >= 2 for one in bars)


def test_names_cannot_break_the_page() -> None:
    """A node may be called anything."""
    evil = history("<script>alert(1)</script>", nodes=('"><b>', "&"))
    page = html(
        Chart(BEGIN, END, [evil]), [("Takeovers", [{"cause": "<i>", "ms": 1.5, "n": None}])]
    )
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("seconds", [5, 70, 3_600, 90_000, 86_400 * 9, 86_400 * 31, 86_400 * 900])
def test_the_axis_has_a_few_round_labels(seconds: int) -> None:
    """From seconds to years there are some ticks, and not too many."""
    marks = ticks(BEGIN, BEGIN + timedelta(seconds=seconds))
    assert 2 <= len(marks) <= 10
    assert len({label for _, label in marks}) == len(marks)


def test_a_picture_is_written(tmp_path: Path) -> None:
    """It is higher for more pairs, never narrower."""
    sizes = []
    for count in (1, 100):
        path = tmp_path / f"{count}.png"
        png(Chart(BEGIN, END, [history(f"pair-{number}") for number in range(count)]), path)
        sizes.append(struct.unpack(">II", path.read_bytes()[16:24]))
    (width, low), (same, high) = sizes
    assert width == same
    assert high > 5 * low


def test_a_pair_without_events_in_the_period_is_an_empty_lane() -> None:
    """Nothing to show is no error."""
    assert "<svg" in svg(Chart(BEGIN, BEGIN, [PairHistory("quiet")]))
    assert "None." in html(Chart(BEGIN, END, []), [("Takeovers", [])])
