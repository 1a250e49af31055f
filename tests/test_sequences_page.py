"""The code of the page on sequences runs as written."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "sequences.md"


@pytest.mark.slow
def test_every_block():
    found = {"__name__": "page", "print": lambda *shown: None}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, found)
    assert found["result"].verdict.trusted
    assert "grid" in found["found"].method
    np.testing.assert_allclose(
        found["found"].value.sum(), found["result"].log_likelihood, atol=1e-3
    )
