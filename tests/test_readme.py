"""The README's code runs as written, but for the numbers of steps and samples."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import alws

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(*blocks):
    """The names that these blocks define, one after the other, in a fit of three steps."""
    found = {"__name__": "readme", "print": lambda *shown: None}
    for block in blocks:
        exec(block.replace("steps=500", "steps=3").replace("1000", "200"), found)
    return found


def test_quickstart():
    found = run(BLOCKS[0])
    result = found["result"]
    assert result.verdict.trusted
    means, shares = result.model.means, jax.nn.softmax(result.model.logits)

    def density(x):
        z = (x[:, None] - np.asarray(means)) ** 2
        return np.log((np.asarray(shares) * np.exp(-z / 2)).sum(axis=1) / np.sqrt(2 * np.pi))

    exact = density(np.asarray(found["data"])).sum()
    np.testing.assert_allclose(result.log_likelihood, exact, atol=0.01)
    assert repr(result).endswith("within 0.01 nats of a maximum")


def test_every_number_of_steps_is_shortened():
    assert not re.findall(r"steps=(?!500\b)", "".join(BLOCKS))


@pytest.mark.slow
def test_every_block():
    found = run(*BLOCKS)
    assert np.isfinite(found["errors"].means).all()
    assert found["cluster"].shape == (200, 2)
    assert found["mode"].shape == (20, 2)
    assert np.isfinite(found["held_out"].total)
    assert found["by_regression"].steps == 3
    assert set(found["by_numpyro"].model.parameters()) == {"means"}
    walk = found["Walk"](found["jnp"].zeros(()), 10)
    draws, _ = alws.draw(walk, found["key"], 16)
    assert draws.x.shape == (16, 10)
    assert found["settings"].sleep_samples == 20_000
    small = alws.Settings(regression=found["settings"].regression, sleep_samples=400)
    key = found["key"]
    result = alws.fit(walk, draws.x, key=key, steps=2, settings=small, progress=False)
    assert result.diagnostics["refused_steps"] == 0
