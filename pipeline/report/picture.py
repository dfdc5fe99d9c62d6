"""The chart as a picture, PNG: for a message or a document."""

import warnings
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from orthia.pipeline.report.chart import Chart, Kind, ticks

_DPI: Final = 110
_FONT: Final = 7
_LANE_INCHES: Final = 0.19
_PLOT_INCHES: Final = 8.5
_HEAD_INCHES: Final = 1.05
_FOOT_INCHES: Final = 0.25
_MARGIN_INCHES: Final = 0.12
_LEAST: Final = {
    Kind.OUT: 0.002,
    Kind.PLANNED: 0.001,
    Kind.MAYBE: 0.001,
    Kind.UNKNOWN: 0.001,
}
"""The least width of an outage, as a share of the period."""


def png(chart: Chart, path: Path) -> None:
    """Write the chart as a picture; raises OSError."""
    with warnings.catch_warnings():
        # Names may be of any script: a glyph that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        _draw(chart, path)


def _draw(chart: Chart, path: Path) -> None:
    # Imported here: it takes half a second, and only this function needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes = chart.lanes()
    height = _HEAD_INCHES + _FOOT_INCHES + _LANE_INCHES * max(1, len(lanes))
    figure = Figure(figsize=(_PLOT_INCHES, height), dpi=_DPI)
    canvas = FigureCanvasAgg(figure)

    def width_of(texts: Iterable[str]) -> float:
        """Return the width of the widest text in inches."""
        renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call]
        widest = 0.0
        for text in texts:
            drawn = figure.text(0, 0, text, fontsize=_FONT, fontweight="bold", parse_math=False)
            widest = max(widest, drawn.get_window_extent(renderer).width)
            drawn.remove()
        return widest / _DPI

    left = width_of(lane.label for lane in lanes) + 2 * _MARGIN_INCHES
    right = width_of(lane.note for lane in lanes) + 2 * _MARGIN_INCHES
    width = left + _PLOT_INCHES + right
    figure.set_size_inches(width, height)
    axes: Any = figure.add_axes(
        (
            left / width,
            _FOOT_INCHES / height,
            _PLOT_INCHES / width,
            1 - (_HEAD_INCHES + _FOOT_INCHES) / height,
        )
    )

    def bars(times: Iterable[tuple[datetime, datetime]], least: float) -> list[tuple[float, float]]:
        found = []
        for begin, end in times:
            x = chart.place(begin)
            long = max(least, chart.place(end) - x)
            found.append((min(x, 1 - long), long))
        return found

    for number, lane in enumerate(lanes):
        for node, colour in lane.colours.items():
            mine = [(one.begin, one.end) for one in lane.served if one.node == node]
            axes.broken_barh(bars(mine, 0.0005), (number - 0.33, 0.66), facecolors=colour)
        for kind in (Kind.UNKNOWN, Kind.PLANNED, Kind.MAYBE, Kind.OUT):
            gaps = [(one.begin, one.end) for one in lane.outages if one.kind is kind]
            axes.broken_barh(
                bars(gaps, _LEAST[kind]), (number - 0.44, 0.88), facecolors=kind.colour
            )
        style = {"color": Kind.OUT.colour, "fontweight": "bold"} if lane.is_out else {}
        texts: Any = {"fontsize": _FONT, "va": "center", "parse_math": False, **style}
        in_inches = axes.get_yaxis_transform()
        aside = _MARGIN_INCHES / _PLOT_INCHES
        axes.text(-aside, number, lane.label, ha="right", transform=in_inches, **texts)
        axes.text(1 + aside, number, lane.note, ha="left", transform=in_inches, **texts)
    axes.set_ylim(max(1, len(lanes)) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    marks = ticks(chart.begin, chart.end)
    axes.set_xticks(
        [chart.place(at) for at, _ in marks], [label for _, label in marks], fontsize=_FONT
    )
    axes.tick_params(top=True, labeltop=True)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.5)
    axes.set_axisbelow(True)
    figure.text(
        _MARGIN_INCHES / width, 1 - 0.2 / height, chart.title, fontsize=_FONT + 2, va="center"
    )
    patches = [
        Patch(color=colour, label=meaning if colour == colours[-1] else "")
        for colours, meaning in chart.legend()
        for colour in colours
    ]
    figure.legend(
        handles=patches,
        loc="center left",
        bbox_to_anchor=(0, 1 - 0.45 / height),
        ncols=len(patches),
        frameon=False,
        fontsize=_FONT,
        columnspacing=0.8,
        handletextpad=0.4,
        handlelength=1.2,
    )
    figure.savefig(path, format="png", dpi=_DPI)
