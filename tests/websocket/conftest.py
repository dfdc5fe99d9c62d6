"""What the tests of WebSockets share: an authority."""

from pathlib import Path

import pytest

from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give one whose certificate is in ``ca.pem``."""
    return Authority(tmp_path / "ca.pem")
