"""The documentation is whole: what its pages name and link to is there, and every page is found."""

import re
from pathlib import Path

import pytest

from orthia.broker.core.errors import Refusal
from orthia.broker.management import metrics, queue_metrics

_ROOT = Path(__file__).parents[1]
_TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
_MANUAL = sorted((_ROOT / "docs").rglob("*.md"))
_PAGES = (*(_ROOT / name for name in _TOP), *_MANUAL)
_LINKING = (
    *_PAGES,
    *(_ROOT / name for name in ("CHANGELOG.md", "SECURITY.md")),
    *(_ROOT / place / "README.md" for place in ("benchmarks", "examples", "tests/simulation")),
)
_ROOMS = "broker|config|database|journal|migrations|nodemanager|pipeline"
_MODULE = re.compile(rf"\borthia\.((?:{_ROOMS})(?:\.[a-z_0-9]+)*)\b")
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _prose(page: Path) -> str:
    return _CODE.sub("", page.read_text())


def _links(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the heading of each link of ``page`` into this tree."""
    found = _LINK.findall(_prose(page))
    return [((page.parent / name).resolve() if name else page, anchor) for name, anchor in found]


def _anchors(page: Path) -> set[str]:
    """Return what a link may name in ``page``: its headings as GitHub spells them, and its ids."""
    prose = _prose(page)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    texts = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading) for heading in headings)
    spelt = {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}
    return spelt | set(re.findall(r'<a id="([^"]+)">', prose))


@pytest.mark.parametrize("page", _LINKING, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_between_pages_hold(page: Path) -> None:
    """A link leads to a file that is there, and to a heading that the file has."""
    broken = [
        f"{place.relative_to(_ROOT)}#{anchor}"
        for place, anchor in _links(page)
        if not place.exists() or (anchor and anchor not in _anchors(place))
    ]
    assert not broken, broken


def test_the_index_of_the_manual_leads_to_every_page() -> None:
    """A page that no task in docs/index.md names is found by nobody; README leads to the index."""
    index = _ROOT / "docs" / "index.md"
    named = {place for place, _ in _links(index)}
    assert [str(page) for page in _MANUAL if page not in {*named, index}] == []
    assert index in {place for place, _ in _links(_ROOT / "README.md")}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_a_page_names_tests_that_are_there(page: Path) -> None:
    """A file that was moved, or a test that was renamed, is found in the documentation too."""
    for file, name in _NAMED.findall(page.read_text()):
        assert (_ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (_ROOT / file).read_text(), f"{file}::{name}"


@pytest.mark.parametrize("page", [*_PAGES, _ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_page_names_modules_that_are_there(page: Path) -> None:
    """A room, a module, or what is in one; a class, or what it has, is not looked for."""
    for name in set(_MODULE.findall(page.read_text())):
        parts = name.split(".")
        place = _ROOT.joinpath(*parts)
        assert (
            place.is_dir()
            or place.with_suffix(".py").is_file()
            or place.parent.with_suffix(".py").is_file()
        ), name


def test_each_promise_names_its_test() -> None:
    """Nine promises, and for each what shows it."""
    page = (_ROOT / "docs" / "reliability.md").read_text()
    table = page.partition("### Which test shows it")[2].partition("\n## ")[0]
    for number in range(1, 10):
        (row,) = re.findall(rf"^\| {number} \| (.*) \|$", table, re.MULTILINE)
        assert _NAMED.search(row), number


def test_the_manual_names_every_metric_and_every_refusal() -> None:
    """An alert on a metric that no page explains wakes somebody who cannot tell what it means."""
    page = (_ROOT / "docs" / "cli.md").read_text()
    told = page.partition("| Metric | |")[2].partition("\n\n")[0]
    code = "".join(Path(str(one.__file__)).read_text() for one in (metrics, queue_metrics))
    names = re.findall(r'"(orthia_\w+)"', code)
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"`{name}(_total)?\b", told)] == []
    assert [one.value for one in Refusal if f"`{one.value}`" not in told] == []
