# Everything runs in a virtual environment of its own, made at the first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(CURDIR)/$(VENV)/bin
# Strategies whose rounds are of each kind: one exchange, two, a chain, states of clients, phases.
SOME_STRATEGIES := $(addprefix tests/strategies/test_,fedavg.py coprefl.py cyclic.py scaffold.py schedule.py)
# Of the tests across modules those of rounds.
OF_ROUNDS := $(addprefix tests/integration/test_,hostile.py memory.py mods.py program_errors.py resume.py stop.py who_hosts_whom.py)
# Of the tests of processes on Ray those of messages, which flwr makes.
OF_MESSAGES := $(addprefix tests/grids/test_ray.py::test_,the_numbers_of_the_grid_in_this_process an_exception_is_the_error_reply_of_the_other_grid)
# What is run with other versions of flwr than that which is installed.
WITH_OTHERS := tests/federation tests/grids/test_local.py $(OF_MESSAGES) tests/federation/test_client_state.py $(SOME_STRATEGIES) $(OF_ROUNDS)
FLOWER_WITH_OTHERS := not every_method and not personalised_methods and not wrong_setting
# Of the tests that start no Ray, those that take longest, in three separate jobs.
RECIPES := tests/recipes $(wildcard tests/integration/test_recipes_*.py)
EXAMPLES := tests/examples tests/testing
INTEGRATION := $(filter-out $(RECIPES),$(wildcard tests/integration/test_*.py))
# The lowest flwr that pyproject.toml allows.
LOWEST := $(shell sed -n 's/.*flwr\[simulation\]>=\([0-9.]*\).*/\1/p' pyproject.toml)

export PATH := $(BIN):$(PATH)

.PHONY: help install quickstart tables test lint types tests flower-tests other-ray-tests lowest-flower-tests recipes-tests examples-tests integration-tests other-tests lowest-tests newest deployment-test chaos benchmarks beside-peers docs notebooks docs-examples release-check costs startbench clean

help:
	@echo "make quickstart   install, then pre-train and compare starting models (5 minutes, and as many to install)"
	@echo "make test         lint, types and tests, with the newest and the lowest flwr"
	@echo "make newest       a part of the tests with the newest flwr on the registry (5 minutes)"
	@echo "make deployment-test   a SuperLink and SuperNodes with TLS, and a Ray cluster, on this machine (some minutes)"
	@echo "make chaos        kills, a user's files, hostile replies, fuzzed inputs, damaged files, lying nodes (half an hour)"
	@echo "make benchmarks   rounds next to plain PyTorch loops, coprefl run beside others, and growth, into docs/performance.md (two and a half hours)"
	@echo "make beside-peers   FedAvg next to other packages, into docs/peers.md (an hour)"
	@echo "make startbench   every start of the package under one rule, five settings (many hours; says them first)"
	@echo "make tables       write what docs/ and pyproject.toml say from the code, record new methods"
	@echo "make costs        measure what the recipes cost at the paper's size, into their page (some minutes)"
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
	rm -rf .quickstart/app && mkdir -p .quickstart/app && cp -r pyproject.toml coprefl_flwr .quickstart/app
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

release-check: install
	python -m docs.release

tables: install
	python -m docs.tables
	python -m tests.records.methods

costs: export OMP_NUM_THREADS = 1
costs: install
	python -m docs.costs

test: lint tests

lint: install
	ruff format --check
	ruff check

types: install
	mypy

# Jobs of tests at once. Those that start Ray take most memory; where less of it is free than all jobs
# need, Ray would kill workers, and tests would fail with them.
MEMINFO := /proc/meminfo
MEGABYTES_A_JOB := 4000
JOBS := $(shell awk '/^MemAvailable/ { n = int($$2 / 1000 / $(MEGABYTES_A_JOB)) } END { print (n < 1 ? 1 : (n > 4 ? 4 : n)) }' $(MEMINFO) 2> /dev/null || echo 4)

# One thread a process: two that wait for each other take many times as long on a busy machine.
# Tests that start Ray wait much, so more jobs run at once than there are cores, and the others let
# them go first: Ray gives its processes, the last by their niceness, 30 seconds to find each other.
FILLING := nice -n 19
tests: export OMP_NUM_THREADS = 1
tests: export RAY_worker_niceness = 0
tests: install
	@echo "with the newest flwr and with $(LOWEST), the lowest that is allowed"
	python -m pip install --quiet --no-deps --upgrade --target .lowest "flwr==$(LOWEST)"
	$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target other-tests examples-tests flower-tests recipes-tests integration-tests other-ray-tests lowest-flower-tests lowest-tests types

# Rays find each other by their folder: of those that run at once each has its own, with a short name.
ALONE = folder=$$(mktemp -d /tmp/ray.XXXXXX); trap 'rm -rf "$$folder"' EXIT; RAY_TMPDIR=$$folder

flower-tests:
	$(ALONE) pytest -m "ray and not deployment" tests/federation/test_flower.py

other-ray-tests:
	$(ALONE) pytest -m "ray and not deployment" --ignore=tests/federation/test_flower.py

lowest-flower-tests:
	$(ALONE) PYTHONPATH=$(CURDIR)/.lowest pytest tests/federation/test_flower.py -k "$(FLOWER_WITH_OTHERS)"

recipes-tests:
	$(FILLING) pytest -m "not ray and not deployment" $(RECIPES)

examples-tests:
	$(FILLING) pytest -m "not ray and not deployment" $(EXAMPLES)

other-tests:
	$(FILLING) pytest -m "not ray and not deployment" --ignore=tests/integration $(patsubst %,--ignore=%,$(RECIPES) $(EXAMPLES))

integration-tests:
	$(FILLING) pytest -m "not ray and not deployment" $(INTEGRATION)

lowest-tests:
	PYTHONPATH=$(CURDIR)/.lowest $(FILLING) pytest $(WITH_OTHERS)

# The newest that is on the registry, which may want newer packages than are installed here.
newest: export OMP_NUM_THREADS = 1
newest: install
	rm -rf .newest
	python -m pip install --quiet --no-deps --target .newest flwr
	@PYTHONPATH=$(CURDIR)/.newest python -c "import flwr, importlib.metadata as of; print('with flwr', of.version('flwr'), 'of', flwr.__file__)"
	PYTHONPATH=$(CURDIR)/.newest pytest $(WITH_OTHERS)
	$(ALONE) PYTHONPATH=$(CURDIR)/.newest pytest tests/federation/test_flower.py -k "$(FLOWER_WITH_OTHERS)"

deployment-test: install
	pytest -m deployment tests/deployment

# CHAOS="kills --seed 3 --count kills=50" is some of it.
chaos: export OMP_NUM_THREADS = 1
chaos: export COPREFL_WORKERS = 1
chaos: install
	python -m tests.chaos $(CHAOS)

benchmarks: install
	python -m benchmarks
	python -m benchmarks.beside
	python -m benchmarks.scale

# The other packages go into .peers, each into an environment of its own.
beside-peers: export OMP_NUM_THREADS = 1
beside-peers: install
	python -m benchmarks.peers --install

clean:
	rm -rf $(VENV) site dist .lowest .newest .peers .quickstart .hypothesis .mypy_cache .ruff_cache .pytest_cache
