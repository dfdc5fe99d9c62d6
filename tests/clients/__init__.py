"""Clients of other people's, as their users use them, with real nodes."""

import pytest

pytestmark = pytest.mark.extended
