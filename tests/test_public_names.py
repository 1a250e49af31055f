"""Every public name is there, documented and reached by `import alws`; the house is small."""

import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import alws
from alws import contrib, devices, estimates, features, kernels, likelihoods, regressions, results

SOURCE = Path(alws.__file__).parent
MODULES = [alws, contrib, devices, estimates, features, kernels, likelihoods, regressions, results]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_public_names_have_docstrings(module):
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
    assert names
    bare = [n for n in names if callable(v := getattr(module, n)) and not (v.__doc__ or "").strip()]
    assert not bare


def test_nothing_for_pictures_or_commands_is_imported():
    code = (
        "import sys, alws; alws.results.annealed_log_likelihood; "
        "assert not {'matplotlib', 'PIL', 'typer', 'sklearn', 'alws_paper'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_fit_sets_no_global_option_of_jax():
    code = (
        "import jax; before = dict(jax.config.values); import alws; "
        "assert dict(jax.config.values) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Mixture(eqx.Module):
    means: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.bernoulli(k1).astype(int)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        return -0.5 * (x - self.means[z]) ** 2


def files_run(call):
    """What a call gives, and the files of the library whose code ran or was traced for it."""
    found = set()

    def note(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(SOURCE)):
            found.add(name.removeprefix(f"{SOURCE}/"))

    sys.setprofile(note)
    try:
        given = call()
    finally:
        sys.setprofile(None)
    return given, found


def test_a_step_and_a_fit_are_understood_from_few_files(key):
    """A step from at most 10 files, a fit by wake-sleep from 14, one that chooses from 21."""
    model, data = Mixture(jnp.array([-1.0, 1.0])), jax.random.normal(key, (40,))
    settings = alws.Settings(sleep_samples=50, validation_samples=20)
    prepared = alws.prepare(model, data, key=key, steps=1, settings=settings)
    _, step = files_run(lambda: prepared.step(prepared.state, 0))
    assert 5 < len(step) <= 10, sorted(step)
    told, files = files_run(
        lambda: alws.fit(model, data, key=key, steps=1, settings=settings, progress=False)
    )
    assert told.steps == 1
    assert step < files
    assert len(files) <= 14, sorted(files)
    chosen, files = files_run(lambda: alws.fit(model, data, key=key, progress=False))
    assert chosen.verdict.trusted
    assert len(files) <= 21, sorted(files)


def test_the_house_is_small():
    """At most 20 entries at the top, and some 40 names at the root."""
    entries = [
        p for p in SOURCE.iterdir() if p.name not in ("__init__.py", "py.typed", "__pycache__")
    ]
    assert len(entries) <= 20
    assert len(alws.__all__) <= 40
