"""Every public name is there, documented and reached by `import alws` alone."""

import subprocess
import sys

import pytest

import alws
from alws import data, features, kernels, likelihoods, metrics
from alws import regressions as regressions
from alws_paper.hyperbolic import manifolds


def test_subpackages_come_when_they_are_asked_for():
    """In a process of its own: the README writes `alws.metrics.…` after `import alws`."""
    code = (
        "import sys, alws; assert 'alws.metrics' not in sys.modules; "
        "assert callable(alws.results.annealed.annealed_log_likelihood); alws.data, alws.images, alws.layers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = alws.nothing


@pytest.mark.parametrize(
    "module", [alws, data, features, regressions, kernels, likelihoods, manifolds, metrics]
)
def test_public_names_have_docstrings(module):
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
    assert names
    bare = [n for n in names if callable(v := getattr(module, n)) and not (v.__doc__ or "").strip()]
    assert not bare
