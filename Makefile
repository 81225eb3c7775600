# Two targets do all the set-up: `make demo` and `make test`. Both build the environment in .venv: the demo needs the package
# alone, and whatever tests, lints or documents adds its tools when it first needs them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
QUICK ?=
# LOCK=requirements.lock: those archives and no others (Python 3.11, Linux x86_64, torch for the CPU), as .ci/run wants it.
LOCK ?=

.PHONY: demo test lint docs slow flower processors wheel lock audit clean

# Images often set it; then each of hundreds of processes compiles torch anew, for three seconds.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles what it imports: all of torch beforehand would take half a minute.
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check
pinned = $(INSTALL) --constraint constraints.txt
locked = $(INSTALL) --no-deps --only-binary :all: --require-hashes --requirement $(LOCK) \
  && $(INSTALL) --no-deps --no-build-isolation --editable . && $(BIN)/pip check
lost = echo "ATTENTION: $(LOCK) cannot be installed here; going on with constraints.txt, whose archives nobody verifies" >&2
tools = $(pinned) --editable '.[dev,docs]'

# The package; with a lock, which is of all archives at once, the tools too.
$(VENV)/package: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	@$(if $(LOCK),{ $(locked); } || { $(lost); $(pinned) torch && $(tools); },$(pinned) torch && $(pinned) --editable .)
	touch $@

$(VENV)/ready: $(VENV)/package
	$(if $(LOCK),,$(tools))
	touch $@

# Eight methods, each tuned, on scikit-learn's digits, 60 unequal clients; ends with the report's path.
demo: $(VENV)/package
	rm -rf $(DEMO)
	$(BIN)/fedconcord tune --config examples/demo.toml --jobs 2 --out $(DEMO) \
	  $(if $(QUICK),--budget 2 --rounds 8 --final-seeds 2$(,)3,--budget 16 --final-seeds 2$(,)3$(,)4$(,)5$(,)6)
, := ,

# The suite on two cores; JOBS=0 runs it in one process, as a debugger wants it.
JOBS ?= 2
pytest = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
test: $(VENV)/ready lint
	$(pytest)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, read from disk: a broken link or a public name without documentation fails.
docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/site/index.html

slow: $(VENV)/ready
	$(pytest) -m 'slow and not flower' $(SLOW)

# Both tiers with the kernels that other processors get: an old Xeon's or EPYC's without AVX-512, and torch's plainest.
# One of the two, and one tier: make processors PROCESSORS=avx2 TIERS="'not slow and not flower'".
avx2 = OPENBLAS_CORETYPE=Haswell MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 NUMBA_CPU_NAME=haswell \
  NUMBA_CPU_FEATURES=+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe
plain = OPENBLAS_CORETYPE=Nehalem MKL_ENABLE_INSTRUCTIONS=SSE4_2 ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=nehalem \
  NUMBA_CPU_FEATURES=+sse4.2,+popcnt
PROCESSORS ?= avx2 plain
TIERS ?= 'not slow and not flower' 'slow and not flower'
processors: $(VENV)/ready
	set -e; $(foreach p,$(PROCESSORS),for tier in $(TIERS); do echo "$p: $$tier"; $($p) $(pytest) -m "$$tier" $(SLOW); done;)

# A real SuperLink with real SuperNodes, one trial at a time; what they logged stays where a test failed.
FLOWER ?= --basetemp build/flower
flower: $(VENV)/ready
	mkdir -p build
	$(BIN)/python -m pytest -m flower -o tmp_path_retention_policy=failed $(FLOWER)

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
