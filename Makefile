# Everything runs in a virtual environment of its own, made at the first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(CURDIR)/$(VENV)/bin
# The tests that read what Flower makes (messages, grids, its strategies, one `flwr run` of all methods):
# they are run with other versions of flwr than the installed one, too.
OF_FLOWER := $(addprefix tests/federation/test_,messages.py client_app.py flower_strategies.py transport.py) \
	tests/grids/test_local.py tests/integration/test_mods.py
ALL_METHODS := tests/federation/test_flower.py::test_every_method_agrees_under_flwr_run_and_on_the_local_grid
# Reading all other files of tests to find no test takes as long as the tests of one of these.
RAY_FILES := $(shell grep -rl --include='test_*.py' 'mark\.ray' tests)
# The lowest flwr that pyproject.toml allows.
LOWEST := $(shell sed -n 's/.*flwr\[simulation\]>=\([0-9.]*\).*/\1/p' pyproject.toml)

export PATH := $(BIN):$(PATH)

.PHONY: help install quickstart tables test test-all lint types tests fast-tests ray-tests with-flower lowest-tests slow-tests slow-ray-tests mistakes newest pythons deployment-test hosts-test chaos benchmarks beside-peers docs notebooks docs-examples release-check startbench zoo clean

help:
	@echo "make quickstart   install, then pre-train and compare starting models (5 minutes, and as many to install)"
	@echo "make test         lint, types and tests, with the newest and the lowest flwr (some minutes)"
	@echo "make test-all     all of them: every method and recipe, faults, the site (at most 40 minutes)"
	@echo "make mistakes     plant mistakes in copies of the package: the tests of make test must catch each (a quarter of an hour)"
	@echo "make newest       a part of the tests with the newest flwr on the registry (5 minutes)"
	@echo "make pythons      the ten lines and a part of the tests with Python 3.11, 3.12 and 3.13 (some minutes and 5 GB each)"
	@echo "make deployment-test   a SuperLink and SuperNodes with TLS, and a Ray cluster, on this machine (some minutes)"
	@echo "make hosts-test   the deployment page typed on six hosts (network namespaces; root), and faults (an hour)"
	@echo "make chaos        kills, a user's files, hostile replies (a quarter of an hour)"
	@echo "make benchmarks   rounds next to plain PyTorch loops, coprefl run beside others, and growth, into docs/performance.md (two and a half hours)"
	@echo "make beside-peers   FedAvg next to other packages, into docs/peers.md (an hour)"
	@echo "make startbench   eighteen starts under one rule, six settings (many hours; says them first)"
	@echo "make zoo          make the starts of examples/starts and their cards (some minutes)"
	@echo "make tables       write what docs/ and pyproject.toml say from the code, record new methods"
	@echo "make docs         build the site into site/, with warnings as errors"
	@echo "make notebooks    run examples/notebooks and write what they show into docs/notebooks (some minutes)"
	@echo "make docs-examples   run the commands of the methods' pages, cut down (some minutes)"
	@echo "make release-check   build wheel and sdist, install into an empty environment, run the ten lines"
	@echo "make clean        remove what these made"

# uv installs in less time than pip, but knows nothing of pip's index, proxy and constraints: where
# any is set, or uv cannot be had or fails, pip installs.
PIPS_OWN := index-url|find-links|no-index|constraint|proxy|cert|trusted-host|pre=
define add
	@if $(BIN)/python -m pip config list | grep -qE "$(PIPS_OWN)" \
		|| ! $(BIN)/python -m pip install --quiet uv \
		|| ! $(BIN)/python -m uv pip install --python $(BIN)/python --editable "$(1)"; \
	then $(BIN)/python -m pip install --editable "$(1)"; fi
	@touch $@
endef

# The package alone, and with what its tests need.
install: $(VENV)/installed

$(VENV)/package: pyproject.toml
	@echo "installing into $(VENV); torch and what it brings take about 5 GB and some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(call add,.)

$(VENV)/installed: $(VENV)/package
	$(call add,.[dev])

# From a copy, because Flower resolves the path of every file in an app's folder, and $(VENV) has 47,000.
quickstart: $(VENV)/package
	rm -rf .quickstart/app && mkdir -p .quickstart/app && cp -r pyproject.toml LICENSE coprefl_flwr .quickstart/app
	SIMULATION_HOME=$(CURDIR)/.quickstart examples/simulate.sh .quickstart/app 2 -c examples/quickstart.toml

# Needs no network once its tools are there. Not --quiet: that hides warnings from --strict too.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict
	@echo "the site is in site/: open site/index.html"

$(VENV)/docs: $(VENV)/package
	$(call add,.[docs])

# Their pages, which the site shows, are committed.
notebooks: $(VENV)/notebooks
	python -m docs.notebook_pages

$(VENV)/notebooks: $(VENV)/package
	$(call add,.[notebooks])

docs-examples: install
	python -m docs.examples

# The same digits every time: one process, one thread.
startbench: export OMP_NUM_THREADS = 1
startbench: install
	python examples/startbench/startbench.py

# The same bytes every time. The start of a text needs its file: make zoo TEXT=FILE.
zoo: export OMP_NUM_THREADS = 1
zoo: install
	python examples/starts/make.py $(if $(TEXT),--text $(TEXT))

release-check: install
	python -m docs.release

tables: install
	python -m docs.tables
	python -m tests.records.methods

BEGAN := $(shell date +%s)
MINUTES = @echo "$@: $$(( ($$(date +%s) - $(BEGAN) + 30) / 60 )) minutes"

test: lint tests
	$(MINUTES)

lint: install
	ruff format --check
	ruff check

types: install
	mypy

# Tests that start no Ray are shared by two processes, which let the others go first: Ray gives its
# processes 30 seconds to find each other, and waits much. One thread a process: two that wait for each
# other take many times as long on a busy machine.
FILLING := nice -n 19
WITHOUT_RAY := $(FILLING) pytest -n 2 --dist worksteal
tests: export OMP_NUM_THREADS = 1
tests: export RAY_worker_niceness = 0
tests: install
	@echo "with the newest flwr and with $(LOWEST), the lowest that is allowed"
	python -m pip install --quiet --no-deps --upgrade --target .lowest "flwr==$(LOWEST)"
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target fast-tests with-flower

with-flower:
	$(MAKE) --no-print-directory ray-tests lowest-tests types

# Rays find each other by their folder: of those that run at once each has its own, with a short name.
ALONE = folder=$$(mktemp -d /tmp/ray.XXXXXX); trap 'rm -rf "$$folder"' EXIT; RAY_TMPDIR=$$folder

fast-tests:
	$(WITHOUT_RAY) -m "not ray and not slow and not deployment"

ray-tests:
	$(ALONE) pytest -m "ray and not slow and not deployment" $(RAY_FILES)

lowest-tests:
	$(ALONE) PYTHONPATH=$(CURDIR)/.lowest pytest -m "not slow or ray" $(OF_FLOWER) $(ALL_METHODS)

# What `make test` leaves out, after it; the site is built first, with warnings as errors.
test-all: export OMP_NUM_THREADS = 1
test-all: export RAY_worker_niceness = 0
test-all: test docs
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target slow-tests slow-ray-tests
	$(MINUTES)

slow-tests:
	$(WITHOUT_RAY) -m "slow and not ray and not deployment"

slow-ray-tests:
	$(ALONE) pytest -m "slow and ray and not deployment" $(RAY_FILES)

mistakes: export OMP_NUM_THREADS = 1
mistakes: install
	python -m tests.mistakes

# The newest that is on the registry, which may want newer packages than are installed here.
newest: export OMP_NUM_THREADS = 1
newest: install
	rm -rf .newest
	python -m pip install --quiet --no-deps --target .newest flwr
	@PYTHONPATH=$(CURDIR)/.newest python -c "import flwr, importlib.metadata as of; print('with flwr', of.version('flwr'), 'of', flwr.__file__)"
	$(ALONE) PYTHONPATH=$(CURDIR)/.newest pytest -m "not slow or ray" $(OF_FLOWER) $(ALL_METHODS)

# Each Python has an environment in .pythons. uv takes a Python of this machine or downloads one; it sees those of
# pyenv if PYENV_VERSION names them, as 3.11.7:3.12.1:3.13.0.
PYTHONS := 3.11 3.12 3.13
OF_PYTHON := tests/docs/test_tables.py $(addprefix tests/,strategies clients federation learning) \
	$(addprefix tests/test_,cli.py files.py named.py object_code.py options.py plugins.py)
pythons: export OMP_NUM_THREADS = 1
pythons: install
	python -m pip install --quiet uv
	@for version in $(PYTHONS); do echo "Python $$version" \
		&& uv venv --quiet --clear --python $$version .pythons/$$version \
		&& uv pip install --quiet --python .pythons/$$version --editable ".[dev]" \
		&& .pythons/$$version/bin/python examples/ten_lines.py \
		&& .pythons/$$version/bin/python -m pytest -m "not ray and not slow and not deployment" $(OF_PYTHON) || exit 1; done
	$(MINUTES)

deployment-test: install
	pytest -m deployment tests/deployment

# Every fault writes what happened into docs/faults.json; `make tables` brings it onto the page.
hosts-test: export OMP_NUM_THREADS = 1
hosts-test: install
	pytest -m hosts tests/hosts
	$(MINUTES)

# CHAOS="kills --seed 3 --count kills=50" is some of it.
chaos: export OMP_NUM_THREADS = 1
chaos: export COPREFL_WORKERS = 1
chaos: install
	python -m tests.chaos $(CHAOS)

benchmarks: install
	python -m benchmarks
	python -m benchmarks.adapters
	python -m benchmarks.beside
	python -m benchmarks.scale

# The other packages go into .peers, each into an environment of its own.
beside-peers: export OMP_NUM_THREADS = 1
beside-peers: install
	python -m benchmarks.peers --install

clean:
	rm -rf $(VENV) site dist .lowest .newest .pythons .peers .quickstart .mypy_cache .ruff_cache .pytest_cache
