# Each target sets up what it needs. A stamp inside the environment remembers what was installed,
# and a change of pyproject.toml or constraints.txt installs again.

VENV := .venv
PYTHON ?= $(shell python3.11 --version >/dev/null 2>&1 && echo python3.11 || echo python3)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# Extras of the test environment, and the engines that need an environment each.
EXTRAS := openvino,litert,ncnn,dev
# Engines that the demo runs.
SHOWN := openvino,litert,ncnn
ENGINES := mnn executorch qnn gguf genai
# Those that also run on emulated CPUs.
EMULATED := mnn executorch qnn

FULL := $(VENV)/.installed-test
# The full environment contains the small one.
CORE := $(if $(wildcard $(FULL)),$(FULL),$(VENV)/.installed-demo)

# $(call install,environment,requirements): torch first and alone, so that nothing else picks its version.
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt
define install
	@echo "setting up $(1) (minutes the first time)"
	@$(1)/bin/python $(PIP) torch==$(TORCH)
	@$(1)/bin/python $(PIP) $(2)
endef

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-quick test-full test-engines test-cpus fuzz check style docs docs-serve bench bench-all clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1 /p' Makefile | while read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

demo: $(CORE) ## see Detent at work
	@$(VENV)/bin/detent demo

# What runs no engine. Each must exist, or pytest says so.
QUICK := $(addprefix tests/,graph ir numerics observers planning quantizers recipes) \
	$(addprefix tests/test_,architecture.py errors.py models.py pairwise.py preparing.py registry.py)
# worksteal: neighbors stay together, for what they share, and a test that ends its worker is not tried again.
# Bytecode is kept, also where the environment forbids it: tests start many processes that import the library.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n auto --dist worksteal
# Seconds that one test may take, where that is more than pyproject.toml allows.
PATIENT := -o faulthandler_timeout=3600

test: $(FULL) ## run the tests, with the engines that share one environment
	@$(PYTEST) --durations=15

test-quick: $(FULL) ## run the tests that need no engine and no large network, while you work
	@$(PYTEST) -m 'not full and not slow' $(QUICK)

test-full: $(FULL) ## run the tests with all that `make test` leaves out: products of parameters, whole data sets
	@$(PYTEST) $(PATIENT) -m 'not cpus' --durations=15

test-engines: ## run the tests of the engines that need an environment of their own
	@for engine in $(ENGINES); do $(MAKE) test-engine-$$engine || exit 1; done

test-engine-%: $(VENV)-%/.installed
	@$(VENV)-$*/bin/python -m pytest $$(grep -rls --include='*.py' 'mark\.$*\b' tests/targets tests/verification) -m '$* and not full'

test-cpus: $(FULL) ## run the engines on emulated CPUs: AVX2 without VNNI, and arm64 (Debian; a quarter of an hour)
	@$(VENV)/bin/python tools/setup_cpus.py .cpus
	@DETENT_CPUS=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PATIENT) tests/cpus -m cpus
	@for engine in $(EMULATED); do $(MAKE) test-cpus-$$engine || exit 1; done

test-cpus-%: $(VENV)-%/.installed
	@DETENT_CPUS=1 OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest $(PATIENT) tests/cpus -m 'cpus and $*'

MINUTES ?= 60
SEED ?= 0
fuzz: $(FULL) ## read damaged files of every kind: make fuzz MINUTES=60 SEED=0
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED)

check: $(FULL) ## format, lint and types, without changing a file
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

style: $(FULL) ## format, and fix what the linter can fix
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

# Two plugins announce successors of mkdocs on every run.
MKDOCS := NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(VENV)-docs/bin/python -m mkdocs

docs: $(FULL) $(VENV)-docs/.installed ## build the site into out/site, check its links and the examples in README.md
	@$(VENV)/bin/python tools/check_links.py
	@$(VENV)/bin/python -m pytest -q --doctest-glob=README.md README.md || [ $$? -eq 5 ] # 5: no example in it
	@$(MKDOCS) build --quiet --strict
	@$(VENV)-docs/bin/python -m tools.website.check out/site

docs-serve: $(VENV)-docs/.installed ## serve the site at http://127.0.0.1:8000, and build it again when a page changes
	@$(MKDOCS) serve

bench: $(CORE) ## measure the kernels
	@$(VENV)/bin/python benchmarks/kernels.py

bench-all: $(FULL) ## measure speed five times over, and write the table in benchmarks/README.md (an hour, alone)
	@$(VENV)/bin/python benchmarks/all.py

clean: ## remove caches and build output, keep the environments
	@rm -rf build dist out .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests examples benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment without pip is one that venv could not finish.
$(VENV)/bin/pip:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(call install,$(VENV),-e '.[$(SHOWN)]')
	@touch $@

$(FULL): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(call install,$(VENV),-e '.[$(EXTRAS)]')
	@touch $@

.PRECIOUS: $(VENV)-%/.installed
$(VENV)-%/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)-$*
	$(call install,$(VENV)-$*,-e '.[$*]' pytest hypothesis)
	@touch $@
