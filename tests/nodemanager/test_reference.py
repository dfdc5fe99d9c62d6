"""The failover log reference is what the registry of events says."""

from pathlib import Path

from orthia.nodemanager.events import REGISTRY
from tools.documents.failover_log import reference

_DOCUMENT = Path(__file__).parents[2] / "docs" / "failover-log.md"


def test_the_committed_reference_is_the_generated_one() -> None:
    """docs/failover-log.md is what python -m tools.documents.failover_log writes."""
    assert _DOCUMENT.read_text() == reference()


def test_every_code_is_explained() -> None:
    """Each has its place, to which the table of codes leads."""
    document = reference()
    for code, kind in REGISTRY.items():
        assert f'<a id="{code.lower()}"></a>{code} {kind.__name__}' in document
        assert kind.advice in document
