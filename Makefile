# Two commands for newcomers: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow check bench lock clean

$(VENV)/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "alws needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make with PYTHON=python3.12 or the like")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/ready  ## fit the pinwheel, with a progress bar, and say where the figure is
	rm -rf runs/demo
	$(BIN)/alws run pinwheel --preset desk --out runs/demo

test: $(VENV)/ready  ## lint and the whole fast test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=10

slow: $(VENV)/ready  ## the tests that take minutes
	XLA_FLAGS= $(BIN)/python -m pytest -q -m slow --durations=10

check: test  ## everything a change should pass, types included
	$(BIN)/pyright

bench: $(VENV)/ready  ## one table of every method, and what is slower than the stored baseline
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python benchmarks/table.py $(BENCH)

lock: $(VENV)/ready  ## pin the dependencies anew
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --extra dev --allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links --annotation-style=line -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) runs build
