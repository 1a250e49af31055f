"""The reproduction is a user of the library: it takes public names only, and is not known to it."""

import ast
from pathlib import Path

import alws
import alws_paper

ROOT = Path(alws_paper.__file__).parent
LIBRARY = Path(alws.__file__).parent


def private(tree):
    """The private names that a module takes from the library, imported or by attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "alws":
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [n for a in node.names if a.name.startswith("alws.") for n in a.name.split(".")]
        elif isinstance(node, ast.Attribute) and "alws" in [*chain(node)][-1:]:
            names = list(chain(node))
        else:
            continue
        yield from (n for n in names if n.startswith("_") and not n.endswith("__"))


def chain(node):
    """`_b`, `a`, `alws` for the expression `alws.a._b`."""
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def test_a_private_name_is_seen():
    code = (
        "import alws\nfrom alws.fit import _order\nalws.fit._advance\nself._mine\nalws.__version__"
    )
    assert sorted(private(ast.parse(code))) == ["_advance", "_order"]


def test_experiments_take_public_names_only():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 100
    found = {path.name: [*private(ast.parse(path.read_text()))] for path in files}
    assert not {name: names for name, names in found.items() if names}


def test_the_library_does_not_know_the_experiments():
    assert not [p for p in LIBRARY.rglob("*.py") if "import alws_paper" in p.read_text()]
    assert not [p for p in LIBRARY.rglob("*.py") if "from alws_paper" in p.read_text()]
