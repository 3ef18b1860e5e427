# The verbs. Each sets up by itself what it needs; `make setup` alone does only that.
PY := .venv/bin/python
BENCHES := $(patsubst bench/%/run.py,bench-%,$(wildcard bench/*/run.py))

.PHONY: setup demo test check bench lock

setup:
	@tools/setup

demo: setup
	@tools/demo

test: setup
	$(PY) -m pytest -q

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy lynx/src k40s/src bench
	.venv/bin/lint-imports

bench: $(BENCHES) # every question: hours

bench-%: setup
	$(PY) bench/$*/run.py

lock:
	tools/lock
