"""Networks in ONNX files, and the scores made with them."""

import sys

import numpy as np
import pytest

from alws_paper.images import Scorer
from alws_paper.images.data.images import Images
from alws_paper.images.scores.extractors import OnnxExtractor, extract


def test_onnx_without_its_runtime_names_the_extra(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="there must be an ONNX file"):
        OnnxExtractor(tmp_path / "absent.onnx", side=32)
    path = tmp_path / "network.onnx"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"alws-paper\[onnx\]"):
        OnnxExtractor(path, side=32)


class Session:
    """What onnxruntime gives, with the mean over the image of each channel as its network."""

    side: int | str = 48

    def __init__(self, path, providers):
        self.path = path

    def get_inputs(self):
        return [type("Input", (), {"name": "images", "shape": ["n", 3, self.side, self.side]})]

    def run(self, outputs, feed):
        assert outputs is None
        return [feed["images"].mean(axis=(2, 3), keepdims=True)]


@pytest.fixture
def onnx_file(tmp_path, monkeypatch):
    path = tmp_path / "network.onnx"
    path.write_bytes(b"")
    runtime = type(sys)("onnxruntime")
    runtime.InferenceSession = Session
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    return path


def test_onnx_images_are_resized_and_rescaled(onnx_file, monkeypatch):
    path = onnx_file
    assert OnnxExtractor(path).side == 48
    network = OnnxExtractor(path, side=64, mean=(0.5, 0.5, 0.25), scale=0.5)
    assert network.name == "network"
    found = extract(network, np.full((5, 1, 32, 32), 0.75, np.float32), batch_size=2)
    np.testing.assert_allclose(found, [[0.5, 0.5, 1.0]] * 5, atol=1e-5)
    monkeypatch.setattr(Session, "side", "side")
    with pytest.raises(ValueError, match=r"fixed side, got shape .*'side'\] in .*Give `side`"):
        OnnxExtractor(path)
    monkeypatch.setattr(Session, "get_inputs", lambda self: 1 / 0)
    monkeypatch.setattr(Session, "__init__", lambda self, *_, **__: 1 / 0)
    with pytest.raises(ValueError, match="must hold a network in the ONNX format"):
        OnnxExtractor(path)


def test_scores_are_made_with_the_network_given(onnx_file, tmp_path, key):
    x = np.random.default_rng(0).uniform(-1, 1, (60, 1, 32, 32)).astype(np.float32)
    data = Images("mnist", x, x, -1.0, 1.0)
    scorer = Scorer(data, number=40, cache=tmp_path, extractor=onnx_file)
    assert (scorer.name, scorer.real.shape) == ("network", (40, 3))
    assert (tmp_path / "features-mnist-40-network.npy").exists()
    again = Scorer(data, number=40, cache=tmp_path, extractor=onnx_file)
    np.testing.assert_array_equal(again.real, scorer.real)


def test_onnx_network_run_by_its_own_runtime(tmp_path):
    """A convolution and a mean over the image, written as a file, against the same in NumPy."""
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    weight = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    values = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("images", ["n", 3, 8, 8]), ("features", ["n", 4, 1, 1]))
    }
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["images", "weight"], ["channels"]),
            onnx.helper.make_node("GlobalAveragePool", ["channels"], ["features"]),
        ],
        "network",
        [values["images"]],
        [values["features"]],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx"
    )
    images = np.random.default_rng(1).uniform(size=(5, 3, 8, 8)).astype(np.float32)
    found = extract(OnnxExtractor(tmp_path / "net.onnx", side=8, mean=0.5), images, batch_size=2)
    expected = (images - 0.5).mean(axis=(2, 3)) @ weight[:, :, 0, 0].T
    np.testing.assert_allclose(found, expected, atol=1e-5)
