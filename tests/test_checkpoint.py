import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws import checkpoint
from alws.checkpoint import CheckpointError


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
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path, tree)
    assert not (tmp_path / "owned").exists()


def test_no_file(tmp_path, tree):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoint.load(tmp_path / "none.npz", tree)
