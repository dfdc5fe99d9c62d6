"""The chart as a page of HTML that needs nothing else: SVG, and tables below it."""

import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from orthia.pipeline.chart import Chart, Kind, Lane, ticks

_ROW: Final = 18
_PLOT: Final = 900
_MARGIN: Final = 10
_AXIS: Final = 26
_LEAST: Final = {Kind.OUT: 2.0, Kind.MAYBE: 1.0, Kind.UNKNOWN: 1.0}
"""How many pixels are drawn of an outage, however short: three seconds of a month can be seen."""
_WIDE: Final = frozenset("MWmw@%&…—")
_FIRST_OF_LAST_TICKS: Final = 0.93
"""A label from here on would be cut off at the right if it were centred."""


def text_width(text: str) -> float:
    """Return how many pixels a text of 11 px takes, at most, in the fonts that browsers have."""
    return sum(
        13.0
        if unicodedata.east_asian_width(letter) in "WF"
        else 12.0
        if letter in _WIDE
        else 9.0
        if letter.isupper()
        else 7.7
        for letter in text
    )


class Drawing:
    """The chart as SVG: an axis that stays in view, and the lanes; each bar tells what it is."""

    def __init__(self, chart: Chart) -> None:
        """Measure the texts, so that none is cut off."""
        self._chart = chart
        self._lanes = chart.lanes()
        labels = max((text_width(lane.label) for lane in self._lanes), default=0.0)
        notes = max((text_width(lane.note) for lane in self._lanes), default=0.0)
        self._left = round(labels) + 2 * _MARGIN
        self._right = round(notes) + 2 * _MARGIN

    @property
    def width(self) -> int:
        """How wide it is, in pixels."""
        return self._left + _PLOT + self._right

    def axis(self) -> str:
        """Return the times."""
        parts = [self._begin(_AXIS, "The times, UTC")]
        for at, label in ticks(self._chart.begin, self._chart.end):
            x, place = self._x(at), self._chart.place(at)
            anchor = "middle"
            if place > _FIRST_OF_LAST_TICKS and not self._right:
                anchor = "end"
            parts.append(
                f'<text class="axis" text-anchor="{anchor}" x="{x:.1f}" y="{_AXIS - 9}">'
                f"{escape(label)}</text>"
            )
        return "\n".join([*parts, "</svg>"])

    def lanes(self) -> str:
        """Return who served when."""
        height = _ROW * max(1, len(self._lanes)) + 4
        parts = [self._begin(height, "Who served when")]
        for at, _ in ticks(self._chart.begin, self._chart.end):
            x = self._x(at)
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        for number, lane in enumerate(self._lanes):
            parts += self._lane(lane, number * _ROW, even=number % 2 == 0)
        return "\n".join([*parts, "</svg>"])

    def _begin(self, height: int, label: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}"'
            f' width="{self.width}" height="{height}" role="img" aria-label="{label}">'
        )

    def _lane(self, lane: Lane, y: int, *, even: bool) -> Iterator[str]:
        if even:
            yield f'<rect class="band" x="0" y="{y}" width="{self.width}" height="{_ROW}"/>'
        middle = y + _ROW - 5
        out = " out" if lane.is_out else ""
        yield (
            f'<text class="label{out}" x="{self._left - _MARGIN}" y="{middle}">'
            f"{escape(lane.label)}</text>"
        )
        yield (
            f'<text class="note{out}" x="{self._left + _PLOT + _MARGIN}" y="{middle}">'
            f"{escape(lane.note)}</text>"
        )
        for one in lane.served:
            colour = lane.colours[one.node]
            yield self._bar(one.begin, one.end, one.note, y + 3, _ROW - 6, colour, 0.5)
        for kind in (Kind.UNKNOWN, Kind.MAYBE, Kind.OUT):
            for gap in lane.outages:
                if gap.kind is kind:
                    least = _LEAST[kind]
                    yield self._bar(
                        gap.begin, gap.end, gap.note, y + 1, _ROW - 2, kind.colour, least
                    )

    def _bar(
        self,
        begin: datetime,
        end: datetime,
        note: str,
        y: int,
        height: int,
        colour: str,
        least: float,
    ) -> str:
        x = self._x(begin)
        width = max(least, self._x(end) - x)
        # What begins at the very end is to be seen there, too.
        x = min(x, self._left + _PLOT - width)
        return (
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{colour}">'
            f"<title>{escape(note)}</title></rect>"
        )

    def _x(self, at: datetime) -> float:
        return self._left + _PLOT * self._chart.place(at)


_STYLE: Final = """
body{font:14px system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:24px 0 6px}
p{margin:0 0 12px;color:#57606a}
.chart{overflow:auto;max-height:85vh;border:1px solid #d0d7de}.chart svg{display:block}
.times{position:sticky;top:0;background:#fff;border-bottom:1px solid #d0d7de;width:max-content}
svg text{font-size:11px;fill:#1f2328}.label{text-anchor:end}svg .axis,svg .note{fill:#57606a}
svg .out{fill:#d1242f;font-weight:600}
.band{fill:#f6f8fa}.tick{stroke:#d0d7de}
.legend span{margin-right:20px;white-space:nowrap}
.legend i{display:inline-block;width:14px;height:11px;margin-right:3px}
table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:left;font-size:13px}
th{border-bottom:1px solid #d0d7de}td.n{text-align:right;font-variant-numeric:tabular-nums}
tr.out td{color:#d1242f;font-weight:600}.table{overflow-x:auto}
"""


def html(chart: Chart, tables: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """Return a page with the chart and ``tables`` (heading, rows); it loads nothing."""
    drawing = Drawing(chart)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Orthia failovers</title><style>{_STYLE}</style></head>",
        f"<body><h1>Who served when</h1><p>{escape(chart.title)}. Point at a bar to read it.</p>",
        f'<p class="legend">{_legend(chart)}</p>',
        f'<div class="chart"><div class="times">{drawing.axis()}</div>{drawing.lanes()}</div>',
    ]
    for heading, rows in tables:
        parts.append(f"<h2>{escape(heading)}</h2>")
        parts.append(f'<div class="table">{_table(rows)}</div>' if rows else "<p>None.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def _legend(chart: Chart) -> str:
    return "".join(
        "<span>"
        + "".join(f'<i style="background:{colour}"></i>' for colour in colours)
        + f"{escape(meaning)}</span>"
        for colours, meaning in chart.legend()
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    return f"<table><tr>{head}</tr>{''.join(map(_row, rows))}</table>"


OUT_NOW: Final = frozenset({"OUT", "STILL OUT"})
"""Words of a cell that make its row red."""


def _row(row: dict[str, Any]) -> str:
    kind = ' class="out"' if OUT_NOW & {str(value) for value in row.values()} else ""
    return f"<tr{kind}>{''.join(map(_cell, row.values()))}</tr>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:,.1f}</td>'
    kind = ' class="n"' if isinstance(value, int) and not isinstance(value, bool) else ""
    return f"<td{kind}>{escape('' if value is None else str(value))}</td>"
