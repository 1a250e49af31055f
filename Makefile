# Two commands for newcomers: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint slow bench lock clean

$(VENV)/ready: requirements.lock pyproject.toml paper/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "alws needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make with PYTHON=python3.12 or the like")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable paper
	touch $@

demo: $(VENV)/ready  ## fit the pinwheel, with a progress bar, and say where the figure is
	rm -rf runs/demo
	$(BIN)/alws-paper run pinwheel --preset desk --out runs/demo

lint: $(VENV)/ready  ## style and types of both distributions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test: lint  ## lint, types and the fast tests of both distributions
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=10

slow: $(VENV)/ready  ## the tests that take minutes
	XLA_FLAGS= $(BIN)/python -m pytest -q -m slow --durations=10

bench: $(VENV)/ready  ## one table of every method, and what is slower than the stored baseline
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python benchmarks/table.py $(BENCH)

lock: $(VENV)/ready  ## pin the dependencies anew; the paper's needs are locked beside, not with, the library
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	mkdir -p build/lock/paper && cp pyproject.toml build/lock && grep -v '"alws==' paper/pyproject.toml > build/lock/paper/pyproject.toml
	cd build/lock && ../../$(BIN)/pip-compile --quiet --extra dev --allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links --annotation-style=line -o ../../requirements.lock pyproject.toml paper/pyproject.toml

clean:
	rm -rf $(VENV) runs build
