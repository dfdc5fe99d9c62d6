"""The chart as a self-contained HTML page: SVG, and tables below it.

Names and notes are text of the page, beside a drawing that takes the remaining width: the browser
measures them, so none is cut off.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from orthia.pipeline.report.chart import Chart, Kind, Lane, ticks

_ROW: Final = 18
_PLOT: Final = 900
"""The width of the drawing in units, whatever its pixels."""
_LEAST: Final = {Kind.OUT: 4.0, Kind.PLANNED: 2.0, Kind.MAYBE: 2.0, Kind.UNKNOWN: 2.0}
"""The least width of an outage in units: three seconds of a month are visible."""
_FIRST_OF_LAST_TICKS: Final = 0.93
"""The position from which on a centred label would be cut off at the right."""
_LAST_OF_FIRST_TICKS: Final = 0.07
_LONG_TEXT: Final = 32
"""The number of characters above which a cell may have several lines."""


class Drawing:
    """The chart: an axis that stays in view, and the lanes; each bar has a tooltip."""

    def __init__(self, chart: Chart) -> None:
        """Put the lanes in order."""
        self._chart = chart
        self._lanes = chart.lanes()

    def axis(self) -> Iterator[str]:
        """Yield the times at their positions."""
        for at, label in ticks(self._chart.begin, self._chart.end):
            place = self._chart.place(at)
            by = 50
            if place > _FIRST_OF_LAST_TICKS:
                by = 100
            elif place < _LAST_OF_FIRST_TICKS:
                by = 0
            style = f"left:{place:.4%};transform:translateX(-{by}%)"
            yield f'<span style="{style}">{escape(label)}</span>'

    def labels(self) -> Iterator[str]:
        """Yield the labels of the lanes."""
        return self._texts([lane.label for lane in self._lanes])

    def notes(self) -> Iterator[str]:
        """Yield the notes of the lanes: availability and outages."""
        return self._texts([lane.note for lane in self._lanes])

    def _texts(self, texts: Sequence[str]) -> Iterator[str]:
        for lane, text in zip(self._lanes, texts, strict=True):
            kind = ' class="out"' if lane.is_out else ""
            yield f"<div{kind}>{escape(text) or '&nbsp;'}</div>"

    def lanes(self) -> str:
        """Return the lanes as scalable SVG."""
        height = _ROW * max(1, len(self._lanes))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PLOT} {height}"'
            f' preserveAspectRatio="none" height="{height}" role="img"'
            ' aria-label="Who served when">'
        ]
        for number in range(0, len(self._lanes), 2):
            y = number * _ROW
            parts.append(f'<rect class="band" x="0" y="{y}" width="{_PLOT}" height="{_ROW}"/>')
        for at, _ in ticks(self._chart.begin, self._chart.end):
            x = self._x(at)
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        for number, lane in enumerate(self._lanes):
            parts += self._lane(lane, number * _ROW)
        return "\n".join([*parts, "</svg>"])

    def _lane(self, lane: Lane, y: int) -> Iterator[str]:
        for one in lane.served:
            colour = lane.colours[one.node]
            yield self._bar(one.begin, one.end, one.note, y + 3, _ROW - 6, colour, 0.5)
        for kind in (Kind.UNKNOWN, Kind.PLANNED, Kind.MAYBE, Kind.OUT):
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
        # A bar that begins at the very end is visible, too.
        x = min(x, _PLOT - width)
        return (
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{colour}">'
            f"<title>{escape(note)}</title></rect>"
        )

    def _x(self, at: datetime) -> float:
        return _PLOT * self._chart.place(at)


_STYLE: Final = """
body{font:14px system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:24px 0 6px}
p{margin:0 0 12px;color:#57606a}
.chart{overflow:auto;max-height:85vh;border:1px solid #d0d7de;display:grid;font-size:11px;
grid-template-columns:max-content minmax(360px,1fr) max-content}
.times{position:sticky;top:0;background:#fff;border-bottom:1px solid #d0d7de;height:26px;z-index:1}
.times span{position:absolute;bottom:7px;color:#57606a;white-space:nowrap}
.labels div,.notes div{height:18px;line-height:18px;padding:0 10px;white-space:nowrap}
.labels{text-align:right}.notes{color:#57606a}
.labels div:nth-child(odd),.notes div:nth-child(odd){background:#f6f8fa}
.axis{container-type:inline-size}
@container (max-width:900px){.times span:not(:nth-child(2n+1)){display:none}}
@container (max-width:450px){.times span:not(:nth-child(4n+1)){display:none}}
.chart .out{color:#d1242f}.labels .out{font-weight:600}.chart svg{display:block;width:100%}
.band{fill:#f6f8fa}.tick{stroke:#d0d7de;vector-effect:non-scaling-stroke}
.legend span{margin-right:20px;display:inline-block}
.legend i{display:inline-block;width:14px;height:11px;margin-right:3px}
table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:left;font-size:13px;
white-space:nowrap;vertical-align:top}td.w{white-space:normal;min-width:20em;overflow-wrap:anywhere}
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
        '<div class="chart"><div class="times"></div>',
        f'<div class="times axis">{"".join(drawing.axis())}</div><div class="times"></div>',
        f'<div class="labels">{"".join(drawing.labels())}</div><div>{drawing.lanes()}</div>',
        f'<div class="notes">{"".join(drawing.notes())}</div></div>',
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
"""Texts of a cell that make its row red."""


def _row(row: dict[str, Any]) -> str:
    kind = ' class="out"' if OUT_NOW & {str(value) for value in row.values()} else ""
    return f"<tr{kind}>{''.join(map(_cell, row.values()))}</tr>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:,.1f}</td>'
    text = "" if value is None else str(value)
    kind = ""
    if isinstance(value, int) and not isinstance(value, bool):
        kind = ' class="n"'
    elif len(text) > _LONG_TEXT:
        kind = ' class="w"'
    return f"<td{kind}>{escape(text)}</td>"
