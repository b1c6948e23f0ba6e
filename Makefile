# `make serve` and `make test` are all a fresh checkout needs: Python 3.11 or newer with venv, and make.
# Variables: PYTHON (interpreter for .venv), PIP_FLAGS (e.g. another index), MODEL, PORT, ARGS (more flags).

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2-135m-instruct
PORT ?= 8000
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt

# One thread per process: the processes share the cores.
PYTEST_PARALLEL = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

.PHONY: help serve test test-slow test-exhaustive test-page lint compare drafter page docs clients soak fuzz install \
	install-dev model clean

help:
	@echo "make serve      install into $(VENV), fetch the embedded model, serve on http://127.0.0.1:$(PORT)"
	@echo "make test       install what tests need and run them (no GPU, compiler or account needed)"
	@echo "make test-slow  the long tests (exactness factorial, oracle runs); test-exhaustive: every case of them"
	@echo "make page       rebuild the page at / from page/ (needs node and npm); make test-page: drive it in Chromium"
	@echo "make compare    what the separate draft budget is worth, measured here"
	@echo "make drafter    make the drafter of $(MODEL): train, calibrate, evaluate, card (hours on two cores; goes on where it was)"
	@echo "make clients    foreign clients (LangChain, LlamaIndex, guidellm, aiperf …) against a server; ARGS=vllm: that one"
	@echo "make soak       half an hour of 200 clients, aborts and bad requests, and what must hold afterwards"
	@echo "make fuzz       schemathesis on the API's description"
	@echo "make docs       the documentation as a site, in build/site"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make install    only install; make install-dev with what tests and benchmarks need"
	@echo "make model      only fetch the embedded model"
	@echo "make clean      remove $(VENV) and caches of this checkout"
	@echo "Variables: MODEL, PORT, ARGS (more flags), PYTHON, PIP_FLAGS; of drafter: RECIPE, DRAFTER_RUN, DATA_RUN, PROMPTS"

serve: install
	@echo "==> serving $(MODEL) on port $(PORT); stop with Ctrl-C"
	@$(BIN)/slipstream serve $(MODEL) --port $(PORT) $(ARGS)

compare: install
	@$(BIN)/slipstream compare $(ARGS)

# Every stage goes on where it was cut off. Once trained, the run's drafter is $(DRAFTER_RUN)/drafter.
# DATA_RUN: another run with the same data and tapped layers, whose dialogues and target states are taken.
# PROMPTS: files to evaluate on, instead of the built-in prompts.
RECIPE ?= recipes/$(MODEL)-dspark.toml
DRAFTER_RUN ?= build/$(MODEL)-dspark
DATA_RUN ?= $(DRAFTER_RUN)
PROMPTS ?=
DRAFTER := $(DRAFTER_RUN)/drafter
SHARED_DATA := $(if $(filter-out $(DRAFTER_RUN),$(DATA_RUN)),--data $(DATA_RUN)/data --states $(DATA_RUN)/states)
# A dflash drafter has no confidences that could be calibrated.
HAS_CONFIDENCE = grep -q '"enable_confidence_head": true' $(DRAFTER)/config.json
drafter: install
	@echo "==> training by $(RECIPE) in $(DRAFTER_RUN); the log is $(DRAFTER_RUN)/train.log"
	@$(BIN)/slipstream train $(MODEL) --recipe $(RECIPE) --output $(DRAFTER_RUN) $(SHARED_DATA) $(ARGS)
	@echo "==> calibrating, if it gives confidences"
	@! $(HAS_CONFIDENCE) || \
	$(BIN)/slipstream calibrate $(DRAFTER) --model $(MODEL) --json $(DRAFTER_RUN)/calibration.json
	@echo "==> evaluating, beside plain decoding"
	@$(BIN)/slipstream evaluate $(DRAFTER) --model $(MODEL) $(addprefix --prompts ,$(PROMPTS)) \
	--json $(DRAFTER_RUN)/evaluation.json
	@echo "==> writing the model card"
	@$(BIN)/slipstream card $(DRAFTER) --training $(DRAFTER_RUN) --data $(DATA_RUN)/data \
	--evaluation $(DRAFTER_RUN)/evaluation.json

# Tests that compare times run first and alone; the others share the cores.
test: install-dev model
	@echo "==> tests that measure time, alone"
	@$(BIN)/python -m pytest -m timing $(ARGS)
	@echo "==> all other tests but the long ones, on all cores"
	@$(PYTEST_PARALLEL) -m "not timing and not slow" --benchmark-disable $(ARGS)

test-slow: install-dev model
	@echo "==> the long tests, on all cores"
	@$(PYTEST_PARALLEL) -m "slow and not timing and not exhaustive" --benchmark-disable --durations=25 $(ARGS)

test-exhaustive: install-dev model
	@echo "==> every case of the long tests, on all cores"
	@$(PYTEST_PARALLEL) -m "slow and not timing" --benchmark-disable $(ARGS)

# Needs Chromium (Debian: apt-get install chromium). SLIPSTREAM_SCREENSHOTS=1 makes those of the README.
test-page: install-dev
	@$(PIP_INSTALL) -e '.[browser]'
	@$(BIN)/python -m pytest -m browser tests/server $(ARGS)

# The built page is kept with the sources, so that serving needs no node; a test sees when it is older than they are.
page:
	@cd page && npm ci --no-audit --no-fund --ignore-scripts && npm run build

lint: install-dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# An environment per client, under build/clients: they ask for versions that exclude each other.
clients: install-dev model
	@$(BIN)/python benchmarks/run_clients.py $(ARGS)

soak: install model
	@mkdir -p build && $(BIN)/python benchmarks/soak.py --json build/soak.json $(ARGS)

fuzz: install model
	@$(PIP_INSTALL) -e '.[fuzz]'
	@$(BIN)/python benchmarks/fuzz_api.py $(ARGS)

# --strict: a dead link, or a page that the menu lacks, is an error.
docs: $(BIN)/python
	@$(PIP_INSTALL) $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "==> build/site/index.html"

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

model: install
	@$(BIN)/python -m slipstream.models.embedded

$(BIN)/python:
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

NATIVE := setup.py $(wildcard slipstream/kernels/native/source/*)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "==> installing Slipstream into $(VENV) (PyTorch is the large part)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "==> installing what tests and checks need"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
