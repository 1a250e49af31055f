import json
import pickle
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alws
from alws import checkpoint
from alws.checkpoint import CheckpointError
from alws.devices import fingerprint


@pytest.fixture
def tree():
    return {
        "a": jnp.arange(6.0).reshape(2, 3),
        "key": jax.random.key(3),
        "n": np.array(4),
        "f": abs,
    }


def test_what_was_saved_is_loaded(tree, tmp_path):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree, {"step": 7})
    like = {"a": jnp.zeros((2, 3)), "key": jax.random.key(0), "n": np.array(0), "f": abs}
    loaded = checkpoint.load(path, like)
    assert checkpoint.header(path) == {"step": 7}
    np.testing.assert_array_equal(loaded["a"], tree["a"])
    assert jax.random.key_data(loaded["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert loaded["n"] == 4
    assert loaded["f"] is abs
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.95])
def test_a_file_cut_short_is_refused_and_left_alone(tree, tmp_path, keep):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree, {})
    whole = path.read_bytes()
    cut = whole[: int(keep if keep >= 1 or keep == 0 else keep * len(whole))]
    path.write_bytes(cut)
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        checkpoint.load(path, tree)
    assert path.read_bytes() == cut


def test_a_flipped_byte_is_refused(tree, tmp_path):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree, {})
    content = bytearray(path.read_bytes())
    content[content.index(jnp.asarray(tree["a"]).tobytes()) + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, tree)


def test_numbers_of_16_bits_are_saved_and_told_apart(tmp_path):
    half = {"a": jnp.array([1.0, 2.0], jnp.bfloat16)}
    assert fingerprint(half) != fingerprint({"a": half["a"] + 1})
    checkpoint.save(tmp_path / "c.npz", half, {})
    loaded = checkpoint.load(tmp_path / "c.npz", {"a": jnp.zeros(2, jnp.bfloat16)})
    assert loaded["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded["a"], half["a"])


def test_another_shape_is_refused(tree, tmp_path):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree, {})
    with pytest.raises(CheckpointError, match=r"must be float32\[9\] for this model, got float32"):
        checkpoint.load(path, {**tree, "a": jnp.zeros(9)})
    with pytest.raises(CheckpointError, match="lacks 1 of the arrays"):
        checkpoint.load(path, {**tree, "more": jnp.zeros(9)})


def test_a_pickle_is_never_executed(tree, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    path = tmp_path / "c.npz"
    checkpoint.save(path, tree, {})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["leaf['a']"] = np.lib.format.magic(1, 0) + pickle.dumps(Bomb())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path, tree)
    bomb = np.empty(6, object)
    bomb[:] = Bomb()
    np.save(tmp_path / "o.npy", bomb, allow_pickle=True)
    members["leaf['a']"] = (tmp_path / "o.npy").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match=r"must be float32\[2, 3\] .* got object\[6\]"):
        checkpoint.load(path, tree)
    assert not (tmp_path / "owned").exists()


def test_no_file(tmp_path, tree):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoint.load(tmp_path / "none.npz", tree)


def test_a_header_that_is_none(tmp_path):
    for content, message in ((b"{cut", "header cannot be read"), (b"[1]", "must be a JSON object")):
        with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
            archive.writestr(checkpoint.HEADER, content)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.header(tmp_path / "c.npz")


# Whose checkpoint it is ---------------------------------------------------------------------------


class Normal(eqx.Module):
    mean: jax.Array
    power: int = eqx.field(static=True, default=1)

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + z + noise

    def log_joint(self, z, x):
        return -0.5 * z**2 - 0.5 * (x - self.mean - z) ** 2


class Other(Normal):
    pass


RIDGE = alws.regressions.KernelRidge(alws.kernels.SquaredExponential())
SETTINGS = {"sleep_samples": 40, "validation_samples": 8}
DATA = np.linspace(-1, 3, 20)


def fit(path, data=None, steps=2, model=None, resume=True, **arguments):
    given = {name: arguments.pop(name) for name in GIVEN if name in arguments}
    return alws.fit(
        Normal(jnp.array(0.0)) if model is None else model,
        DATA if data is None else data,
        key=jax.random.key(0),
        steps=steps,
        settings=alws.Settings(**{"adapt": alws.ALWS_F, **SETTINGS, **arguments}),
        checkpoint=path,
        resume=resume,
        **given,
    )


GIVEN = ("batch_size", "log_prior", "callbacks", "checkpoint_every")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "c.npz"
    fit(path, resume=False)
    return path


def test_the_header_says_what_a_checkpoint_belongs_to(written):
    header = checkpoint.header(written)
    assert len(header.pop("data")) == 16
    assert header.pop("model")[".mean"] == "float32[]"
    assert header.pop("adapt")[".bandwidth"] == "False"
    assert header.pop("estimate") == {"": "Joint"}
    assert header.pop("log_prior") == {"": "None"}
    assert header.pop("regression") == header.pop("optimiser") == {"": "the default"}
    sizes = {
        "batch_size": 20,
        "theta_steps": 1,
        "measure_every": 50,
        "conditions": None,
        **SETTINGS,
    }
    assert header == {"format": 3, "step": 2, "reports": 2, "steps": 2, **sizes}
    assert fit(written).steps == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 3}, "started with; steps was 2, is 3"),
        ({"batch_size": 10}, "batch_size was 20, is 10"),
        ({"sleep_samples": 48}, "sleep_samples was 40, is 48"),
        ({"data": DATA + 1e-6}, "started with; data was '.*', is '"),
        ({"measure_every": 1}, "measure_every was 50, is 1"),
        ({"model": Other(jnp.array(0.0))}, "model was Normal, is Other"),
        ({"model": Normal(jnp.array(0.0), 2)}, r"model\.power was 1, is 2"),
        ({"estimate": alws.estimates.Cross()}, "estimate was Joint, is Cross"),
        ({"adapt": alws.ALWS_A}, r"adapt\.bandwidth was False, is True; adapt\.features was"),
        ({"regression": RIDGE}, "regression was the default, is KernelRidge"),
        ({"optimiser": optax.sgd(0.1)}, "optimiser was the default, is GradientTransf"),
        ({"log_prior": lambda model: -(model.mean**2)}, "log_prior was None, is <lambda>, code"),
    ],
)
def test_another_fit_does_not_go_on_from_it(written, change, message):
    before = written.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        fit(written, **change)
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def weighing(weight):
    return lambda model: -weight * model.mean**2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"regression": RIDGE}, r"regression\.log_ridge was float32\[\] -2\.3.*, is .* -4\.6"),
        ({"optimiser": optax.sgd(0.2)}, r"optimiser.*step_size was -0\.1, is -0\.2"),
        ({"log_prior": weighing(2.0)}, r"log_prior\.weight was 1\.0, is 2\.0"),
        ({"steps": 1}, "at least the 2 that .* has done, got 1"),
    ],
)
def test_numbers_inside_a_regression_an_optimiser_and_a_prior_count(tmp_path, change, message):
    arguments = {
        "regression": alws.regressions.KernelRidge(alws.kernels.SquaredExponential(), ridge=0.1),
        "optimiser": optax.sgd(0.1),
        "log_prior": weighing(1.0),
    }
    path = tmp_path / "c.npz"
    fit(path, resume=False, **arguments)
    with pytest.raises(CheckpointError, match=message):
        fit(path, **{**arguments, **change})
    assert fit(path, steps=3, **arguments).steps == 3


@pytest.mark.parametrize("wrong", [{"format": 2}, {"method": "VAE"}])
def test_another_format_is_refused(written, tmp_path, wrong):
    with zipfile.ZipFile(written) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[checkpoint.HEADER] = json.dumps({"step": 2, **wrong}).encode()
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    got = wrong.get("format")
    with pytest.raises(CheckpointError, match=f"checkpoint of format 3, got {got}: another"):
        fit(tmp_path / "c.npz")


def test_resuming_from_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`resume=True` must come with `checkpoint`"):
        fit(None)
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        fit(tmp_path / "none.npz")
