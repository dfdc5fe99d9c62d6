"""Two versions of Orthia on one database: `make upgrade-test AGAINST=CHECKOUT`."""

import pytest

pytestmark = pytest.mark.extended
