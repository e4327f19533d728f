# Two commands to begin with:  make campaign   make test
PYTHON ?= python3
BIN := .venv/bin
# What is imported is compiled then: all of torch would take a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
CAMPAIGN ?= examples/laptop.toml
QUICK := unit or contract or smoke
SYSTEM := system and not ($(QUICK)) and not nightly
# One seed a night for what is drawn at random: another one on each day, the same for each test.
SEED ?= $(shell date +%Y%m%d)

# Compiled modules are kept: a run of the tests starts hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: campaign test system nightly mutate kept pictures docs check check-lines check-kept check-tests check-types format audit hashes clean

campaign: .venv/.installed
	$(BIN)/frontrunner launch $(CAMPAIGN)

test: .venv/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal -m "($(QUICK)) and not nightly"

# Batch systems, browsers and killed processes beside each other; then what watches the whole machine.
system: .venv/.installed-dev
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "$(SYSTEM) and not alone"
	$(BIN)/pytest -m "$(SYSTEM) and alone" tests/system tests/faults

# What is exhaustive, drawn at random, or too long for a gate: hours.
nightly: .venv/.installed-dev
	@echo "seed $(SEED)"
	FRONTRUNNER_TEST_SEED=$(SEED) $(BIN)/pytest -n 2 --dist loadfile -m nightly \
	  --hypothesis-profile=explore --hypothesis-seed=$(SEED)
	FRONTRUNNER_TEST_EVERY_RECIPE=1 $(BIN)/pytest -n 2 --dist load -k test_each_two_choices_together \
	  tests/system/test_numerics.py tests/system/test_numerics_deepspeed.py

# How strong the quick tests are: how many of COUNT random mutations they see.
COUNT ?= 100
mutate: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutate.py --count $(COUNT) --seed $(SEED) --json build/mutate.json

# Files that are made from the code: references of docs, the schema of recipe files.
kept: .venv/.installed-dev
	PYTHONPATH=tests $(BIN)/python tests/support/kept_files.py

# The pictures of docs/pages: of two campaigns of the examples, which are launched where there is no pictured.db; the second
# begins with what the first has measured, and runs once more to be pictured at it.
pictures: .venv/.installed-dev
	test -f pictured.db || for name in laptop-accumulation laptop; do \
	  $(BIN)/frontrunner launch examples/$$name.toml --store pictured.db || exit; done
	PYTHONPATH=tests $(BIN)/python tests/support/pictures.py pictured.db docs/pages examples/laptop.toml

# The documentation as a site, in build/site; a broken link or anchor between its pages is an error.
docs: .venv/.installed-dev
	$(BIN)/zensical build --clean --strict

check: check-lines check-kept check-tests check-types

check-lines: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-kept: .venv/.installed-dev
	$(BIN)/pytest -q -m kept tests/unit/test_kept_files.py tests/system/test_notebook.py

# A test file that cannot be imported would end all of `make test`. The tests are compiled with it.
check-tests: .venv/.installed-dev
	@mkdir -p build
	$(BIN)/pytest -qq --collect-only >build/tests.txt || { tail -30 build/tests.txt; exit 1; }

check-types: .venv/.installed-dev
	$(BIN)/mypy src/frontrunner

# Known weaknesses of the pinned packages, as far as this machine's index tells any.
audit:
	$(PYTHON) .ci/audit

# The hashes of the pinned versions' files; WHEELS are taken too, as torch's builds for CPUs alone.
hashes:
	$(PYTHON) .ci/pin_hashes $(WHEELS)

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "frontrunner needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Run: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -c constraints.txt -e .
	@touch $@

.venv/.installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.installed

clean:
	rm -rf .venv build dist *.egg-info
