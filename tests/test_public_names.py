"""Every public name is there, documented and reached by `import alws`; the house is small."""

import ast
import subprocess
import sys
from pathlib import Path

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


def imported(name):
    """The modules of alws that a module needs, itself among them."""
    path = SOURCE.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("alws"):
            whole = [f"{node.module}.{a.name}" for a in node.names]
            parts = [
                w for w in whole if (SOURCE.joinpath(*w.split(".")[1:])).with_suffix(".py").exists()
            ]
            found.update(parts or [node.module])
    return found


def closure(name):
    seen, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(imported(module))
    return seen


def test_the_house_is_small():
    """A step from at most 10 files, `fit` from at most 14, at most 20 entries at the top."""
    step = closure("alws.wake_sleep") | {"alws.regressions.kernel_ridge", "alws.kernels.stationary"}
    assert len(step) <= 10, sorted(step)
    assert len(closure("alws.fit")) <= 14, sorted(closure("alws.fit"))
    entries = [
        p for p in SOURCE.iterdir() if p.name not in ("__init__.py", "py.typed", "__pycache__")
    ]
    assert len(entries) <= 20
    assert len(alws.__all__) <= 40
