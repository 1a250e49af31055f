"""Image generators and graphs against Equinox's layers, SciPy's densities and score identities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from alws.model import draw, has_likelihood, log_joints
from alws_paper.images import (
    DCGAN,
    GRAPHS,
    Binary,
    Bounded,
    Connected,
    Feedback,
    ImageModel,
    Unbounded,
    pictures,
    scored_pictures,
)
from alws_paper.images.diagrams import EDGES


def test_dcgan_is_a_stack_of_transposed_convolutions(quick):
    key = quick
    channels = 3
    network = DCGAN(width=2, channels=channels, scale=0.3, key=key)
    z = jax.random.normal(jax.random.fold_in(key, 1), (16,))
    h = z[:, None, None]
    weights = [network.first, *(layer.weight for layer in network.rest)]
    assert [w.shape[:2] for w in weights] == [(16, 8), (8, 4), (4, 2), (2, channels)]
    for i, w in enumerate(weights):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layer = eqx.nn.ConvTranspose2d(
            *w.shape[:2], 4, stride, padding=padding, use_bias=False, key=key
        )
        kernel = jnp.swapaxes(w[:, :, ::-1, ::-1], 0, 1)
        h = eqx.tree_at(lambda m: m.weight, layer, kernel)(jax.nn.relu(h) if i else h)
    assert network(z).shape == (channels, 32, 32)
    np.testing.assert_allclose(network(z), h, rtol=1e-4, atol=1e-4)


def test_weights_start_as_asked_for(quick):
    assert jnp.std(DCGAN(width=8, key=quick).rest[0].weight) == pytest.approx(0.01, rel=0.05)
    network = eqx.filter_eval_shape(lambda key: Connected((1, 32, 32), key=key), quick).network
    sizes = [layer.weight.shape for layer in network.layers]
    assert sizes == [(512, 16), (512, 512), (1024, 512)]


def test_outputs_have_the_densities_of_scipy(key):
    raw = 4 * jax.random.normal(key, (1, 4, 4))
    mean = 1e-4 + (1 - 2e-4) / (1 + np.exp(-np.asarray(raw, np.float64)))
    x = np.round(np.random.default_rng(0).uniform(size=raw.shape))
    found = Binary().likelihood(raw).log_prob(jnp.asarray(x))
    np.testing.assert_allclose(found, stats.bernoulli(mean).logpmf(x).sum(), rtol=1e-4)
    np.testing.assert_allclose(Binary().mean(raw), mean, rtol=1e-4)
    extreme = Binary().likelihood(jnp.array([-200.0, 200.0]))
    np.testing.assert_allclose(jax.nn.sigmoid(extreme.logits), [1e-4, 1 - 1e-4], rtol=1e-3)
    for output, centre in ((Bounded(0.5), np.tanh(raw)), (Unbounded(0.5), np.asarray(raw))):
        expected = stats.norm(centre, 0.5).logpdf(x).sum()
        found = output.likelihood(raw).log_prob(jnp.asarray(x))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_pictures_have_no_noise(quick):
    model = ImageModel(DCGAN(width=1, doublings=1, key=quick), Bounded(), 16)
    assert jnp.abs(pictures(model, quick, 20)).max() < 0.1
    x = eqx.filter_jit(draw)(model, quick, 20)[0].x
    assert x.shape == (20, 1, 8, 8)
    assert x.std() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "name",
    ["feedback-skip", *(pytest.param(n, marks=pytest.mark.slow) for n in ("skip", "merged"))],
)
def test_graphs_score_what_they_draw(name, key):
    """E[∇ log p(z, x)] = 0 over the model's own draws, for every parameter."""
    start = GRAPHS[name]((1, 2, 2), Unbounded(), key=key, bits=4, continuous=4, hidden=6)
    model = jax.tree.map(lambda a: 1.5 * a if eqx.is_inexact_array(a) else a, start)
    assert has_likelihood(model)

    @eqx.filter_jit
    def scores(model):
        draws, _ = draw(model, jax.random.key(1, impl="rbg"), 4000)
        per_draw = jax.vmap(
            lambda d: eqx.filter_grad(
                lambda m: log_joints(m, jax.tree.map(lambda a: a[None], d))[0]
            )(model)
        )(draws)
        return jnp.concatenate([g.reshape(4000, -1) for g in jax.tree.leaves(per_draw)], axis=1)

    values = np.asarray(scores(model))
    errors = values.std(axis=0) / np.sqrt(len(values)) + 1e-6
    worst = np.abs(values.mean(axis=0) / errors).max()
    assert worst < 4.5
    assert np.median(errors) < 0.2


def test_graphs_have_the_sizes_of_the_paper(quick):
    """Sizes of the latents, and of what h sees of them."""

    def sizes(name):
        model = eqx.filter_eval_shape(
            lambda key: GRAPHS[name]((1, 32, 32), Binary(), key=key), quick
        )
        z = eqx.filter_eval_shape(lambda m, key: m.sample_latent(key), model, quick)
        first, last = model.network.network.layers
        assert (first.out_features, last.out_features) == (512, 1024)
        return [leaf.size for leaf in jax.tree.leaves(z)], first.in_features

    assert sizes("direct") == ([10, 16], 16)
    assert sizes("skip") == ([10, 16], 26)
    assert sizes("merged") == ([10, 16], 16)
    assert sizes("feedback") == ([5, 8, 5, 8], 16)
    assert sizes("feedback-skip") == ([5, 8, 5, 8], 21)


def test_odd_layers_are_refused(key):
    with pytest.raises(ValueError, match=r"must be even; got 5 and 8"):
        Feedback((1, 4, 4), Binary(), key=key, bits=5, continuous=8)


def test_binary_pixels_are_drawn_where_they_are_scored(quick):
    key = quick
    network = Connected((1, 4, 4), hidden=4, key=key)
    binary, grey = (ImageModel(network, output, 16) for output in (Binary(), Bounded()))
    means, drawn = pictures(binary, key, 1000), scored_pictures(binary, key, 1000)
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_allclose(drawn.mean(axis=0), means.mean(axis=0), atol=0.05)
    assert np.corrcoef(drawn.ravel(), means.ravel())[0, 1] > 0.05
    np.testing.assert_array_equal(scored_pictures(grey, key, 5), pictures(grey, key, 5))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_drawn_edges_are_what_the_graphs_depend_on(name, quick):
    model = GRAPHS[name]((1, 2, 2), Unbounded(), key=quick, bits=4, continuous=4, hidden=6)
    z = jax.tree.map(lambda a: a + 0.1, model.sample_latent(quick))
    layers = {"": z} if name in ("direct", "skip", "merged") else {"1": z.top, "2": z.lower}
    latents = {
        f"z{kind}{number}": getattr(layer, field)
        for number, layer in layers.items()
        for kind, field in (("d", "bits"), ("c", "continuous"))
    }
    names = {id(value): key for key, value in latents.items()}
    order = [names[id(leaf)] for leaf in jax.tree.leaves(z)]

    def moves(function):
        """Which latents a function of z depends on, the others constant."""
        slopes = jax.tree.leaves(jax.grad(lambda z: jnp.sum(jnp.abs(function(z))))(z))
        return {key for key, slope in zip(order, slopes, strict=True) if np.any(slope != 0)}

    hidden = {start for start, end in EDGES[name] if end in ("h", "h1")}
    assert moves(model.mean) <= hidden
    weights = model.narrow if name == "merged" else model.network.network.layers[0]
    sizes = sum(latents[key].size for key in hidden)
    assert weights.weight.shape[1] == sizes
    assert {node for edge in EDGES[name] for node in edge if node.startswith("z")} == set(order)
