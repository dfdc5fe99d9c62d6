"""The holder timeline of pairs as a Gantt chart: data, a page of HTML that needs nothing else, PNG.

With few pairs each node has a lane of its own; with many each pair has one, in which the colour
tells the node. Pairs that were out for longest come first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, Final

_COLOURS: Final = ("#3b6ea8", "#d98032", "#4f9a58", "#8567a8", "#8a6d5b", "#5aa3ad")
_OUT: Final = "#d1242f"
_LANES_FOR_NODES: Final = 40
"""Above so many lanes a pair's nodes share one."""
_ROW: Final = 18
_LABEL: Final = 210
_PLOT: Final = 1_000
_NOTE: Final = 190
_HEAD: Final = 26
_TICKS: Final = 8


@dataclass(frozen=True)
class Segment:
    """A stretch of time in which a node served, or nobody did."""

    begin: datetime
    end: datetime
    node: str
    note: str


@dataclass
class PairHistory:
    """What the chart shows of one pair."""

    name: str
    availability: float | None = None
    takeovers: int = 0
    served: list[Segment] = field(default_factory=list)
    outages: list[Segment] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """The nodes that served, in the order they first did."""
        return list(dict.fromkeys(segment.node for segment in self.served))

    @property
    def out_seconds(self) -> float:
        """How long nobody served."""
        return sum((one.end - one.begin).total_seconds() for one in self.outages)


@dataclass(frozen=True)
class Lane:
    """A line of the chart."""

    label: str
    note: str
    served: Sequence[Segment]
    outages: Sequence[Segment]
    colours: dict[str, str]


@dataclass(frozen=True)
class Chart:
    """A period, and the pairs in it."""

    begin: datetime
    end: datetime
    pairs: Sequence[PairHistory]

    def lanes(self) -> list[Lane]:
        """Return what is drawn, from top to bottom."""
        ordered = sorted(self.pairs, key=lambda pair: (-pair.out_seconds, pair.name))
        by_node = sum(max(1, len(pair.nodes)) for pair in ordered) <= _LANES_FOR_NODES
        return [lane for pair in ordered for lane in _lanes_of(pair, by_node=by_node)]


def _lanes_of(pair: PairHistory, *, by_node: bool) -> Iterator[Lane]:
    colours = {node: _COLOURS[number % len(_COLOURS)] for number, node in enumerate(pair.nodes)}
    share = "" if pair.availability is None else f"{pair.availability:.4%}"
    note = f"{share} · {pair.takeovers} takeovers · out {pair.out_seconds:.1f} s"
    if not by_node or len(pair.nodes) < 2:
        yield Lane(pair.name, note, pair.served, pair.outages, colours)
        return
    for number, node in enumerate(pair.nodes):
        mine = [segment for segment in pair.served if segment.node == node]
        outages = pair.outages if number == 0 else [one for one in pair.outages if one.node == node]
        yield Lane(f"{node} · {pair.name}", note if number == 0 else "", mine, outages, colours)


def ticks(begin: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Return about eight round instants between ``begin`` and ``end``, and their labels."""
    span = end - begin
    fitting = (pair for pair in _STEPS if span / pair[0] <= _TICKS)
    step, form = next(fitting, (timedelta(days=-(-span.days // _TICKS)), "%d %b %Y"))
    first = datetime.min.replace(tzinfo=begin.tzinfo)
    at = first + -(-(begin - first) // step) * step
    found = []
    while at <= end:
        found.append((at, f"{at:{form}}"))
        at += step
    return found


_CLOCK: Final = "%H:%M:%S"
_STEPS: Final = [
    *((timedelta(seconds=seconds), _CLOCK) for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300)),
    *((timedelta(minutes=minutes), "%d %b %H:%M") for minutes in (10, 15, 30, 60, 120, 180, 360)),
    *((timedelta(hours=hours), "%d %b %H:%M") for hours in (12,)),
    *((timedelta(days=days), "%d %b %Y") for days in (1, 2, 7, 14, 30)),
]


def svg(chart: Chart) -> str:
    """Return the chart as SVG; every bar tells what it is under the mouse."""
    lanes = chart.lanes()
    width, height = _LABEL + _PLOT + _NOTE, _HEAD + _ROW * max(1, len(lanes)) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="Who served when">'
    ]
    for at, label in ticks(chart.begin, chart.end):
        x = _x(chart, at)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEAD}" y2="{height}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{_HEAD - 9}">{escape(label)}</text>')
    for number, lane in enumerate(lanes):
        parts += _lane_svg(chart, lane, _HEAD + number * _ROW, even=number % 2 == 0)
    return "\n".join([*parts, "</svg>"])


def _lane_svg(chart: Chart, lane: Lane, y: int, *, even: bool) -> Iterator[str]:
    if even:
        yield f'<rect class="band" x="0" y="{y}" width="{_LABEL + _PLOT + _NOTE}" height="{_ROW}"/>'
    middle = y + _ROW - 5
    yield f'<text class="label" x="{_LABEL - 8}" y="{middle}">{escape(_short(lane.label))}</text>'
    yield f'<text class="note" x="{_LABEL + _PLOT + 8}" y="{middle}">{escape(lane.note)}</text>'
    for segment in lane.served:
        yield _bar(chart, segment, y + 3, _ROW - 6, lane.colours[segment.node], least=0.5)
    for segment in lane.outages:
        # Wide enough to be seen in a month's chart, however short it was.
        yield _bar(chart, segment, y + 1, _ROW - 2, _OUT, least=2.0)


def _bar(chart: Chart, segment: Segment, y: int, height: int, colour: str, *, least: float) -> str:
    x = _x(chart, segment.begin)
    width = max(least, _x(chart, segment.end) - x)
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{colour}">'
        f"<title>{escape(segment.note)}</title></rect>"
    )


def _x(chart: Chart, at: datetime) -> float:
    span = (chart.end - chart.begin).total_seconds() or 1.0
    inside = min(max(at, chart.begin), chart.end)
    return _LABEL + _PLOT * (inside - chart.begin).total_seconds() / span


def _short(label: str, most: int = 34) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


_STYLE: Final = """
body{font:14px system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:24px 0 6px}
p{margin:0 0 12px;color:#57606a}
.chart{overflow:auto;max-height:85vh;border:1px solid #d0d7de}
svg text{font-size:11px;fill:#1f2328}.label{text-anchor:end}.axis{text-anchor:middle;fill:#57606a}
.note{fill:#57606a}.band{fill:#f6f8fa}.tick{stroke:#d0d7de}
table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:left;font-size:13px}
th{border-bottom:1px solid #d0d7de}td.n{text-align:right;font-variant-numeric:tabular-nums}
"""


def html(chart: Chart, tables: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """Return a page with the chart and ``tables`` (heading, rows); it loads nothing."""
    period = f"{chart.begin:%Y-%m-%d %H:%M:%S} to {chart.end:%Y-%m-%d %H:%M:%S} UTC"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Orthia failovers</title><style>{_STYLE}</style></head>",
        "<body><h1>Who served when</h1>",
        f"<p>{len(chart.pairs)} pairs, {escape(period)}, by the databases' clocks. Red: nobody"
        " served. Point at a bar to read it.</p>",
        f'<div class="chart">{svg(chart)}</div>',
    ]
    for heading, rows in tables:
        parts.append(f"<h2>{escape(heading)}</h2>")
        parts.append(_table(rows) if rows else "<p>None.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:,.1f}</td>'
    kind = ' class="n"' if isinstance(value, int) and not isinstance(value, bool) else ""
    return f"<td{kind}>{escape('' if value is None else str(value))}</td>"


def png(chart: Chart, path: Path) -> None:
    """Write the chart as a picture; raises OSError."""
    # Not above: half a second, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = chart.lanes()
    figure = Figure(figsize=(14, 1.1 + 0.19 * max(1, len(lanes))), dpi=110)
    FigureCanvasAgg(figure)
    inches = figure.get_figheight()
    axes = figure.add_axes((0.18, 0.4 / inches, 0.8, 1 - 0.8 / inches))
    figure.text(0.01, 0.1 / inches, "red: nobody served; times are UTC", fontsize=7)
    span = (chart.end - chart.begin).total_seconds() or 1.0

    def bars(segments: Sequence[Segment], least: float) -> list[tuple[float, float]]:
        starts = [(one.begin - chart.begin).total_seconds() for one in segments]
        lengths = [(one.end - one.begin).total_seconds() for one in segments]
        return [(at, max(long, span * least)) for at, long in zip(starts, lengths, strict=True)]

    for number, lane in enumerate(lanes):
        for node, colour in lane.colours.items():
            mine = [segment for segment in lane.served if segment.node == node]
            axes.broken_barh(bars(mine, 0.0005), (number - 0.35, 0.7), facecolors=colour)
        axes.broken_barh(bars(lane.outages, 0.002), (number - 0.45, 0.9), facecolors=_OUT)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, span)
    axes.set_yticks(range(len(lanes)), [_short(lane.label) for lane in lanes], fontsize=7)
    marks = ticks(chart.begin, chart.end)
    places = [(at - chart.begin).total_seconds() for at, _ in marks]
    axes.set_xticks(places, [label for _, label in marks], fontsize=7)
    axes.tick_params(top=True, labeltop=True)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.5)
    axes.set_axisbelow(True)
    figure.savefig(path, format="png")
