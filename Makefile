# `make setup` needs Python 3.11 or later, pip and make. Every other target sets up what it needs first.
PYTHON ?= python3
PY := .venv/bin/python
ROOT := .cache/root
STAMP := .venv/.installed
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak bench cov check format lock clean

help:
	@echo "make setup   install the locked packages and onefold into .venv"
	@echo "make demo    simulate a shop, deliver its events badly, prove the read models right"
	@echo "make test    run the tests, then hold the core's branch coverage to its bound"
	@echo "make check   lint, format, types, import contracts"
	@echo "make bench   measure against eventsourcing and against plain PostgreSQL"
	@echo "make soak    run the long tests"
	@echo "make cov     branch coverage of domain and projections in the last run of the tests"
	@echo "make format  rewrite the sources in the common format"
	@echo "make lock    renew uv.lock and requirements.lock (needs uv)"
	@echo "make clean   remove caches and .venv"

setup: $(STAMP)

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Expected Python 3.11 or later, found $$($(PYTHON) --version 2>&1). Name another: make setup PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv || { \
		$(PYTHON) -m venv --without-pip --clear .venv && $(PYTHON) -m pip --python $(PY) install --quiet pip; }

$(STAMP): requirements.lock pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	.venv/bin/onefold demo $(ARGS)

test: setup
	@mkdir -p .cache/coverage
	$(PY) -m pytest -n $(WORKERS) -m "not soak" --cov --cov-report= $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory cov)

soak: setup
	$(PY) -m pytest -m soak $(ARGS)

bench: setup
	$(PY) tests/bench/run.py $(ARGS)

cov: setup
	$(PY) -m coverage report
	@$(PY) -m coverage json --quiet -o .cache/coverage/report.json
	@$(PY) tests/branch_bound.py .cache/coverage/report.json 95

# The type checkers find the package by its folder's name: the link gives it that name in a checkout of any.
$(ROOT)/onefold:
	@mkdir -p $(ROOT) && ln -sfn ../../pyproject.toml $(ROOT)/pyproject.toml && ln -sfn ../.. $@

check: setup $(ROOT)/onefold
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	cd $(ROOT) && ../../$(PY) -m mypy --cache-dir ../mypy -p onefold
	cd $(ROOT) && ../../$(PY) -m pyright -p . --warnings --stats > ../pyright.log || { cat ../pyright.log; exit 1; }
	@# pyright is content with no files at all.
	@grep '^Found [1-9][0-9]* source files*$$' .cache/pyright.log
	cd $(ROOT) && PYTHONPATH=. ../../.venv/bin/lint-imports pyproject.toml --cache-dir ../imports

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

lock:
	uv lock
	uv export --quiet --frozen --all-extras --all-groups --no-hashes --no-emit-project --no-annotate --no-header -o requirements.lock

clean:
	rm -rf .venv .cache .bench .hypothesis build dist *.egg-info
