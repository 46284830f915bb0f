PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format schema tape-table cause-pages bench bench-peers clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[torch,examples]" --group dev
	touch $@

demo: $(VENV)/.installed ## train a broken digits classifier under whyloss and read its diagnosis
	$(BIN)/whyloss run examples/dead_relu.py

test: $(VENV)/.installed lint ## lint, types, import contracts, tests
	$(BIN)/pytest -n 2

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format src tests benchmarks

schema: $(VENV)/.installed ## write docs/schema again from the report's types
	$(BIN)/python -m whyloss.report.schema > docs/schema/report-1.json

tape-table: $(VENV)/.installed ## write the table of docs/tape.md again from the steps in tests/tape_models.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/tape_table.py

cause-pages: $(VENV)/.installed ## write docs/causes again from the rules
	$(BIN)/python tests/cause_pages.py

bench: $(VENV)/.installed ## who names the cause, what observing costs, how fast a tape trains, who locates non-finite values
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/rules.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/tape_speed.py
	$(BIN)/python benchmarks/nonfinite.py

bench-peers: $(VENV)/.installed ## the same programs under other tools, in an environment of their own
	$(BIN)/python benchmarks/detection.py --peers

clean:
	rm -rf $(VENV) .whyloss
