"""The fit by default beside an experiment's own: kept by the run, and told apart in the claims."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import alws
from alws_paper.run import Claim, Run
from alws_paper.shared.by_default import fit_by_default


class Level(alws.StateSpace):
    """A level that walks, seen through noise: the Kalman filter is exact."""

    log_noise: jax.Array
    times: int = eqx.field(static=True, default=20)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, 0.3)

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


def test_a_run_that_goes_on_takes_its_fit_and_the_claims_say_whose_it_is(tmp_path, monkeypatch):
    start = Level(jnp.array(0.0))
    data = np.asarray(alws.draw(start, jax.random.key(1), 5)[0].x)
    run = Run(tmp_path, 0, progress=False)
    first = fit_by_default(run, start, data, key=jax.random.key(0), seconds=10.0)
    assert "nats of a maximum" in first.told
    exact = [
        alws.state_space.sequence_log_likelihood(
            Level(first.model.log_noise + step), data, key=jax.random.key(2)
        ).value.sum()
        for step in (0.0, -0.05, 0.05)
    ]
    assert exact[0] == max(exact)  # the maximum of one parameter

    monkeypatch.setattr(alws, "fit", lambda *_, **__: pytest.fail("it was fitted again"))
    again = fit_by_default(run, start, data, key=jax.random.key(0), seconds=10.0)
    assert again.told == first.told
    assert again.model.log_noise == first.model.log_noise

    (claim,) = again.claims([Claim("it rises", "shown in a figure", "by 3", True)])
    assert claim.source == "ours"
    assert claim.claim == "default fit, raw data: it rises"
    assert claim.paper.endswith("shown in a figure")
    assert first.told in claim.measured
