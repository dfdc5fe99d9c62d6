"""The report of a run: a page with plots for a person, a PNG for a terminal, a table for a text."""

import base64
import html
import io
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.chaos.run import Result, Struck

_NODES = ("alpha", "beta", "gamma")
_INCHES_PER_MINUTE = 3.0
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { border-bottom: 1px solid #ddd; padding: .2rem .8rem; text-align: right }
td:first-child, th:first-child { text-align: left }
.good { color: #0a6b2d } .bad { color: #b00020 }
.plot { overflow-x: auto } pre { white-space: pre-wrap; background: #f6f6f6; padding: 1rem }
"""


def write(results: Sequence[Result], directory: Path) -> Path:
    """Write ``index.html`` and a PNG for each DBMS; return the page's path."""
    sections = []
    for result in results:
        picture = io.BytesIO()
        _draw(result).savefig(picture, format="png", dpi=80)
        (directory / f"{result.dbms}-{result.seed}.png").write_bytes(picture.getvalue())
        sections.append(_section(result, picture.getvalue()))
    page = directory / "index.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>Orthia under faults</title>"
        f"<style>{_STYLE}</style><h1>Orthia under faults</h1>{''.join(sections)}",
        encoding="utf-8",
    )
    return page


def summary(results: Sequence[Result]) -> str:
    """Return a Markdown table: a line for each figure, a column for each DBMS."""
    lines = [("", *(result.dbms for result in results))]
    lines.append(("---", *("---:" for _ in results)))
    lines.append(("faults survived", *(str(len(result.faults)) for result in results)))
    figures = dict.fromkeys(figure for result in results for figure in result.figures)
    lines += [(figure, *(_figure(result, figure) for result in results)) for figure in figures]
    taken = [[fault for fault in result.faults if fault.takeovers] for result in results]
    lines.append(("faults with a takeover", *(str(len(faults)) for faults in taken)))
    lines.append(("the clients waited then, median s", *(_median(faults) for faults in taken)))
    lines.append(("the clients waited then, at most s", *(_most(faults) for faults in taken)))
    violated = [str(sum(result.violations.values())) for result in results]
    lines.append(("violations", *violated))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def merged(results: Sequence[Result]) -> list[Result]:
    """Return one result for each world: the sums of its runs'."""
    worlds: dict[str, Result] = {}
    for result in results:
        whole = worlds.setdefault(result.dbms, Result(result.dbms, result.seed))
        whole.seconds = max(whole.seconds, result.seconds)
        whole.faults += result.faults
        whole.told += result.told
        for sums, counts in (
            (whole.figures, result.figures),
            (whole.violations, result.violations),
        ):
            for name, count in counts.items():
                sums[name] = sums.get(name, 0) + count
    return list(worlds.values())


def by_kind(results: Sequence[Result]) -> str:
    """Return a Markdown table: a line for each kind of fault, its number on each DBMS."""
    kinds = sorted({fault.kind for result in results for fault in result.faults})
    lines = [("fault", *(result.dbms for result in results), "median s", "most s")]
    lines.append(("---", *("---:" for _ in results), "---:", "---:"))
    for kind in kinds:
        struck = [[f for f in result.faults if f.kind == kind] for result in results]
        every = [fault for faults in struck for fault in faults]
        counts = (str(len(faults)) for faults in struck)
        lines.append((kind, *counts, _median(every), _most(every)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _median(faults: Iterable[Struck]) -> str:
    outages = [fault.outage_seconds for fault in faults]
    return f"{statistics.median(outages):.1f}" if outages else "-"


def _most(faults: Iterable[Struck]) -> str:
    return f"{max((fault.outage_seconds for fault in faults), default=0.0):.1f}"


def _figure(result: Result, figure: str) -> str:
    return f"{result.figures[figure]:,}" if figure in result.figures else "-"


def _section(result: Result, picture: bytes) -> str:
    violated = sum(result.violations.values())
    verdict = (
        f"<p class=bad><b>{violated} violations</b></p><pre>{html.escape(_lines(result))}</pre>"
        if violated
        else "<p class=good><b>No violation.</b></p>"
    )
    encoded = base64.b64encode(picture).decode()
    return (
        f"<h2>{html.escape(result.dbms)}, seed {result.seed},"
        f" {result.seconds / 60:.0f} minutes; nodes with {html.escape(result.settings)}</h2>"
        f"{verdict}"
        f"<div class=plot><img alt='timeline' src='data:image/png;base64,{encoded}'></div>"
        f"{_table(summary([result]))}<p>How long clients waited, by fault:</p>"
        f"{_table(by_kind([result]))}"
    )


def _lines(result: Result) -> str:
    return "\n".join(result.told)


def _table(markdown: str) -> str:
    rows = [line.strip("| ").split(" | ") for line in markdown.splitlines()]
    head, _, *body = rows
    cells = "".join(f"<th>{html.escape(cell.strip())}</th>" for cell in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell.strip())}</td>' for cell in row)}</tr>"
        for row in body
    )
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _draw(result: Result) -> Figure:
    kinds = sorted({fault.kind for fault in result.faults})
    width = min(200.0, max(12.0, result.seconds / 60 * _INCHES_PER_MINUTE))
    figure = Figure(figsize=(width, 6 + 0.22 * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        4, 1, sharex=True, height_ratios=[2, 1, 0.22 * len(kinds) + 0.3, 1.5], squeeze=True
    )
    _draw_throughput(axes[0], result)
    _draw_holders(axes[1], result)
    _draw_faults(axes[2], result, kinds)
    _draw_outages(axes[3], result)
    axes[0].set_xlim(0, max(result.seconds, 1.0))
    axes[3].set_xlabel("seconds")
    return figure


def _draw_throughput(axes: Axes, result: Result) -> None:
    for counts, label in (
        (result.confirmed_per_second, "confirmed"),
        (result.received_per_second, "received"),
    ):
        axes.step(range(len(counts)), counts, where="post", label=label, linewidth=0.8)
    axes.set_ylabel("a second")
    axes.legend(loc="upper right")
    axes.set_title(f"{result.dbms}, seed {result.seed}: {len(result.faults)} faults")


def _draw_holders(axes: Axes, result: Result) -> None:
    changes = [*result.holders, (result.seconds, "", 0)]
    for (began, name, _), (ended, _, _) in pairwise(changes):
        if name in _NODES:
            axes.barh(_NODES.index(name), ended - began, left=began, color=f"C{_NODES.index(name)}")
    axes.set_yticks(range(len(_NODES)), _NODES)
    axes.set_ylabel("live lock")


def _draw_faults(axes: Axes, result: Result, kinds: list[str]) -> None:
    for fault in result.faults:
        row, seconds = kinds.index(fault.kind), fault.ended - fault.began
        axes.barh(row, fault.recovered - fault.began, left=fault.began, color="#f3c4b5")
        axes.barh(row, max(seconds, 0.2), left=fault.began, color="#c0392b")
    axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes.grid(axis="y", linewidth=0.3)


def _draw_outages(axes: Axes, result: Result) -> None:
    for wanted, label in ((True, "with a takeover"), (False, "without")):
        chosen = [fault for fault in result.faults if bool(fault.takeovers) is wanted]
        axes.plot(
            [fault.began for fault in chosen],
            [fault.outage_seconds for fault in chosen],
            "o" if wanted else ".",
            markersize=4,
            label=label,
        )
    axes.set_ylabel("clients\nwaited s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")
