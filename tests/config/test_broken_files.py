"""What a person is told about a configuration that cannot be used, word by word."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from orthia import config

_HEAD = '<configuration xmlns="urn:activemq">\n<core xmlns="urn:activemq:core">\n'
_TAIL = "\n</core>\n</configuration>\n"


@dataclass(frozen=True)
class Broken:
    """A configuration that cannot be used."""

    name: str
    content: str
    message: str


def _table() -> list[Broken]:
    text = Path(__file__).with_name("broken.txt").read_text()
    found = []
    for entry in text.split("\n== ")[1:]:
        name, _, rest = entry.partition("\n")
        content, _, message = rest.partition("\n--\n" if not rest.startswith("--\n") else "--\n")
        whole = name.startswith("file: ")
        found.append(
            Broken(name, content if whole else f"{_HEAD}{content}{_TAIL}", message.strip())
        )
    return found


@pytest.mark.parametrize("broken", [pytest.param(one, id=one.name) for one in _table()])
def test_a_broken_file_is_refused_with_this_message(broken: Broken, tmp_path: Path) -> None:
    """Each problem is told with file, line, element and what was expected."""
    path = tmp_path / "broker.xml"
    path.write_text(broken.content)

    with pytest.raises(config.ConfigurationError) as caught:
        config.load(path)

    assert str(caught.value).replace(f"{tmp_path}/", "") == broken.message
    assert "hunter2" not in str(caught.value)


def test_the_table_is_not_cut_short() -> None:
    """Reading the table finds all of its entries."""
    assert len(_table()) >= 80
