import pytest

pytestmark = pytest.mark.extended
