# Two targets do all the set-up: `make demo` and `make test`. Both build the environment in .venv once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
QUICK ?=
# LOCK=requirements.lock: those archives and no others (Python 3.11, Linux x86_64, torch for the CPU), as .ci/run wants it.
LOCK ?=

.PHONY: demo test lint docs slow flower wheel lock audit clean

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
pinned = $(INSTALL) --constraint constraints.txt torch && $(INSTALL) --constraint constraints.txt --editable '.[dev,docs]'
locked = $(INSTALL) --no-deps --only-binary :all: --require-hashes --requirement $(LOCK) \
  && $(INSTALL) --no-deps --no-build-isolation --editable . && $(BIN)/pip check
lost = echo "ATTENTION: $(LOCK) cannot be installed here; going on with constraints.txt, whose archives nobody verifies" >&2

$(VENV)/ready: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	@$(if $(LOCK),{ $(locked); } || { $(lost); $(pinned); },$(pinned))
	touch $@

# Eight methods, each tuned, on scikit-learn's digits, 60 unequal clients; ends with the report's path.
demo: $(VENV)/ready
	rm -rf $(DEMO)
	$(BIN)/fedconcord tune --config examples/demo.toml --jobs 2 --out $(DEMO) \
	  $(if $(QUICK),--budget 2 --rounds 8 --final-seeds 2$(,)3,--budget 16 --final-seeds 2$(,)3$(,)4$(,)5$(,)6)
, := ,

# The suite on two cores; JOBS=0 runs it in one process, as a debugger wants it.
JOBS ?= 2
test: $(VENV)/ready lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, read from disk: a broken link or a public name without documentation fails.
docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/site/index.html

slow: $(VENV)/ready
	$(BIN)/python -m pytest -m 'slow and not flower' -n $(JOBS) --dist worksteal $(SLOW)

# A real SuperLink with real SuperNodes, one trial at a time.
flower: $(VENV)/ready
	$(BIN)/python -m pytest -m flower

wheel: $(VENV)/ready
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# The closure of what is installed, with hashes, after a change of constraints.txt; by Python 3.11, minutes of downloads.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet pip-tools
	build/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --extra dev --extra docs --build-deps-for editable \
	  --constraint constraints.txt --output-file requirements.lock pyproject.toml

# Known vulnerabilities of what the lock has; asks pypi.org.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	sed s/+cpu// requirements.lock > build/audit/requirements.txt
	build/audit/bin/pip-audit --strict --disable-pip --requirement build/audit/requirements.txt

clean:
	rm -rf $(VENV) $(DEMO) build dist
