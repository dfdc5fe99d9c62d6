"""``docs``: the pages and files that come with Orthia, wherever it was installed."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.rendering import print_table
from orthia.broker.node.exit_codes import Unavailable

_PATTERNS: Final = (
    "*.md",
    "broker.xml.example",
    "docs/*.md",
    "docs/*.service",
    "docs/*/*.md",
    "benchmarks/README.md",
    "examples/README.md",
)
_TITLES: Final = {
    ".example": "A broker.xml to start from, with every element explained",
    ".service": "The systemd unit",
}
"""Of what is no page."""


@click.command(
    epilog=example(
        "orthia docs high-availability",
        'cp "$(orthia docs --path orthia@.service)" /etc/systemd/system/',
    )
)
@click.argument("page", required=False)
@click.option("--path", "as_path", is_flag=True, help="Print where the page is, to copy it.")
def docs(page: str | None, *, as_path: bool) -> None:
    """Show a PAGE of this version's documentation; without PAGE, which there are.

    broker.xml.example and the systemd unit are among them.
    """
    root = _root()
    if page is None:
        if as_path:
            click.echo(root)
        else:
            print_table(
                ["page", "title"], [(name, _title(path)) for name, path in _pages(root).items()]
            )
        return
    path = _pages(root).get(page.removesuffix(".md"))
    if path is None:
        raise click.BadParameter(f"there is no page {page!r}; `orthia docs` lists them")
    click.echo(path if as_path else path.read_text(encoding="utf-8"), nl=as_path)


def _root() -> Path:
    """Return the directory with README.md and docs/: of the installation, or the source tree."""
    source_tree = Path(__file__).resolve().parents[2]
    for root in (*_installed(), source_tree):
        if (root / "broker.xml.example").is_file():
            return root
    raise Unavailable(
        "the documentation is not where Orthia is installed, nor beside its source: install Orthia"
        " from its wheel or a checkout, as its page `installation` says"
    )


def _installed() -> Iterator[Path]:
    try:
        installed = files("orthia") or []
    except PackageNotFoundError:
        return
    for file in installed:
        if file.parts[-3:] == ("share", "orthia", "broker.xml.example"):
            yield Path(str(file.locate())).resolve().parent


def _pages(root: Path) -> dict[str, Path]:
    found = [path for pattern in _PATTERNS for path in sorted(root.glob(pattern))]
    return {_name(path.relative_to(root)): path for path in found}


def _name(path: Path) -> str:
    if path.suffix != ".md":
        return path.name
    return path.parent.name if path.stem == "README" and path.parent.name else path.stem


def _title(path: Path) -> str:
    if path.suffix in _TITLES:
        return _TITLES[path.suffix]
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")
