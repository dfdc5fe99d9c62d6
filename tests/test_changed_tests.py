"""Which tests a hook runs for a change."""

from pathlib import Path

import pytest

from tools.changed_tests import ALWAYS, MAX_FILES, OF_DOCUMENTS, to_run


def test_of_a_module_run_those_that_import_it() -> None:
    """Changed tests run themselves, others when they import what changed; no process is started."""
    found = to_run(["config/exposure.py", "tests/process/test_restarts.py"])
    assert {"tests/cli/test_privacy.py", "tests/process/test_restarts.py", *ALWAYS} <= {*found}
    assert "tests/config/test_tls.py" not in found
    assert not any("/process/" in one for one in to_run(["config/exposure.py"]))


def test_what_everything_imports_is_left_to_the_whole_suite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be most of it; and a file that is gone has no tests."""
    for number in range(MAX_FILES + 1):
        path = tmp_path / "tests" / "core" / f"test_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("from orthia import config\nimport orthia.config.settings\n")
    assert to_run(["config/settings.py", "tests/core/test_gone.py"], tmp_path) == []
    assert "make test" in capsys.readouterr().out
    assert len(to_run(["tests/core/test_1.py"], tmp_path)) == 1


def test_those_that_always_run_are_there() -> None:
    """They hold the rooms and the pages together."""
    assert {*ALWAYS, *OF_DOCUMENTS} <= {*to_run([])}
