"""The benchmark table: its layout, its baseline, and other libraries' gradients against ours."""

import json

import baseline
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table

import alws
from alws.features import Linear
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws_paper.gradient.experiment import Toy

RESULT = {
    "seconds": 0.5,
    "product_seconds": 0.2,
    "product_median": 0.21,
    "product_flops": 2e10,
    "flops": 3e10,
    "memory_gib": 0.625,
    "error": 0.08,
    "gradient_seconds": 0.04,
}


def result(ratio):
    return {**RESULT, "seconds": ratio * RESULT["product_seconds"]}


def stored(**rows):
    rows = {name: {"ratio": ratio, "spread": spread} for name, (ratio, spread) in rows.items()}
    return {"format": 1, "runs": 3, "machine": "two cores", "rows": rows}


def test_layout():
    text = table.layout({"exact": RESULT, "pytorch": "not installed: pip install '.[bench]'"})
    heading, exact, missing, peak = text.splitlines()
    assert heading.split() == ["s/step", "of", "peak", "GiB", "error", "s/gradient", "error·√s"]
    # 3e10 operations in 0.5 s, where the product makes 1e11 a second: 60 %; 0.08·√0.04 = 0.016.
    assert exact.endswith("0.500        60 %        0.62      0.0800      0.0400      0.0160")
    assert len(exact) == len(heading)
    assert missing.startswith("PyTorch ")
    assert missing.endswith("not installed: pip install '.[bench]'")
    assert "100.0 to 100.0 GFLOP/s" in peak


def test_a_busy_machine_is_told():
    slow = {**RESULT, "product_median": 0.3}
    assert "busy" not in table.layout({"exact": RESULT, "nystrom": RESULT})
    assert "1.5 times" in table.layout({"exact": RESULT, "nystrom": slow})


def test_only_what_exceeds_the_noise_is_slower():
    before = stored(exact=(2.0, 0.01), nystrom=(2.0, 0.2), adapted=(2.0, 0.01))
    now = {"exact": result(2.6), "nystrom": result(3.0), "adapted": result(2.4)}
    found = baseline.compare(before, now)
    assert [change.row for change in found] == ["exact"]  # 30 % of 25 %, 50 % of 60 %, 20 % of 25 %
    assert found[0].then == 2.0
    assert found[0].now == pytest.approx(2.6)
    assert found[0].noise == 0.25


def test_verdict_names_row_then_now_and_remedy():
    before = stored(exact=(2.0, 0.0), pytorch=(2.0, 0.0))
    ours = {"exact"}
    text, fine = baseline.verdict(before, {"exact": result(3.0)}, "two cores", ours)
    assert not fine
    assert "SLOWER: exact takes 3.00 matrix products a step, 50 % more than the 2.00" in text
    assert "--store" in text
    assert "another machine" not in text
    text, fine = baseline.verdict(before, {"pytorch": result(3.0)}, "two cores", ours)
    assert fine
    assert "busy" in text
    text, fine = baseline.verdict(before, {"exact": result(2.1)}, "eight cores", ours)
    assert fine
    assert "another machine" in text
    assert "Nothing is slower" in text
    text, fine = baseline.verdict(before, {"nystrom": result(2.1)}, "two cores", ours)
    assert not fine
    assert "Not in the baseline" in text
    assert not baseline.verdict(None, {"exact": result(2.1)}, "two cores", ours)[1]


def test_what_is_stored_is_read_again(tmp_path):
    path = tmp_path / "baseline.json"
    assert baseline.load(path) is None
    runs = [{"exact": result(r)} for r in (2.0, 2.2, 2.1)]
    path.write_text(json.dumps(baseline.summarise(runs, "two cores")))
    found = baseline.load(path)
    assert found is not None
    row = found["rows"]["exact"]
    assert row["ratio"] == pytest.approx(2.1)
    assert row["spread"] == pytest.approx(0.1 / 2.1, abs=1e-4)
    path.write_text('{"format": 0}')
    with pytest.raises(ValueError, match="format 1, got 0"):
        baseline.load(path)


def test_a_row_that_seems_slower_is_measured_again(monkeypatch):
    asked = []
    monkeypatch.setattr(table, "elsewhere", lambda name, quick: asked.append(name) or result(2.1))
    before = stored(exact=(2.0, 0.0), nystrom=(2.0, 0.0))
    first = {"exact": result(4.0), "nystrom": result(2.0), "pytorch": "not installed"}
    assert table.again(before, first, True)["exact"] == result(2.1)
    assert asked == ["exact"]


class Generator(eqx.Module):
    network: eqx.nn.MLP
    log_noise: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (2,))

    def log_prior(self, z):
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z):
        return Gaussian(self.network(z), jnp.exp(self.log_noise))


def small_problem():
    """A small image problem with all its random numbers, in double precision."""
    keys = jax.random.split(jax.random.key(3), 5)
    model = Generator(eqx.nn.MLP(2, 6, 5, 2, key=keys[0]), jnp.array(-0.5))
    z, noise = jax.random.normal(keys[1], (80, 2)), jax.random.normal(keys[2], (80, 6))
    wake = jax.random.normal(keys[3], (9, 6))
    return model, jax.random.normal(keys[4], (6, 4)), z, noise, wake


@eqx.filter_jit
def our_gradient(model, regression, sleep, wake):
    held = alws.estimates.Natural().hold(model, regression.fit(sleep.x), sleep, wake, None)
    return eqx.filter_grad(lambda m: alws.estimates.Natural().objective(m, sleep, held, None))(
        model
    )


def of_image_step(model, projection, z, noise, wake):
    x = jax.vmap(model.network)(z) + jnp.exp(model.log_noise) * noise
    kernel = SquaredExponential(Linear(projection, True), bandwidth=2.0, track=False)
    return our_gradient(
        model, alws.regressions.KernelRidge(kernel, ridge=0.1), alws.Draws(z, x), wake
    )


def toy_problem():
    toy = Toy(jnp.array([0.75, 1.75]), jnp.array(0.3))
    return toy, alws.draw(toy, jax.random.key(4), 150)[0], jnp.linspace(-4.0, 3.0, 20)


def of_toy(toy, sleep, wake):
    kernel = SquaredExponential(bandwidth=0.6, track=False)
    return our_gradient(toy, alws.regressions.KernelRidge(kernel, ridge=0.01), sleep, wake).b


def test_scikit_learn_gives_our_gradient():
    theirs = pytest.importorskip("with_scikit_learn")
    with jax.enable_x64(True):
        toy, sleep, wake = toy_problem()
        found = theirs.toy_gradient(toy.b, toy.noise, sleep, wake, 0.6, 0.01)
        np.testing.assert_allclose(found, of_toy(toy, sleep, wake), rtol=1e-8)
        model, *rest = small_problem()
        network, noise = theirs.image_gradient(model.network, model.log_noise, *rest, 2.0, 0.1)
        exact = of_image_step(model, *rest)
        np.testing.assert_allclose(noise, exact.log_noise, rtol=1e-8)
        for ours, other in zip(exact.network.layers, network.layers, strict=True):
            np.testing.assert_allclose(other.weight, ours.weight, atol=1e-9)
            np.testing.assert_allclose(other.bias, ours.bias, atol=1e-9)


def test_pytorch_gives_our_gradient():
    torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install '.[bench]'")
    import with_pytorch as theirs

    with jax.enable_x64(True):
        toy, sleep, wake = toy_problem()
        found = theirs.toy_gradient(toy.b, toy.noise, sleep, wake, 0.6, 0.01)
        np.testing.assert_allclose(found, of_toy(toy, sleep, wake), rtol=1e-8)
        model, *rest = small_problem()
        network = theirs.generator(2, 5, 5, 6)
        for linear, layer in zip(network[::2], model.network.layers, strict=True):
            linear.weight.data = torch.tensor(np.array(layer.weight))
            linear.bias.data = torch.tensor(np.array(layer.bias))
        noise = torch.tensor(np.array(model.log_noise), requires_grad=True)
        projection, z, draws, wake = (torch.tensor(np.array(a)) for a in rest)
        theirs.backward(network, noise, projection, z, draws, wake, 2.0, 0.1)
        exact = of_image_step(model, *rest)
        np.testing.assert_allclose(-noise.grad, exact.log_noise, rtol=1e-8)
        for ours, linear in zip(exact.network.layers, network[::2], strict=True):
            np.testing.assert_allclose(-linear.weight.grad, ours.weight, atol=1e-9)
            np.testing.assert_allclose(-linear.bias.grad, ours.bias, atol=1e-9)
