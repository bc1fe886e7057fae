# make run    train on the built-in digits and name a few pictures (sets up its own .venv)
# make test   run the tests                 make check   lint, format, types
# make bench  the speed benchmarks          make clean   remove what these made

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := runs/digits

.PHONY: run test check format bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "installing mixwise and what it needs into $(VENV) (a few minutes, once)"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

run: $(VENV)/installed
	@rm -rf $(RUN) runs/digits-pictures
	$(BIN)/mixwise train digits --out $(RUN)
	@echo
	$(BIN)/mixwise evaluate $(RUN) digits
	@echo
	$(BIN)/mixwise export-data digits runs/digits-pictures --count 8
	$(BIN)/mixwise predict $(RUN) runs/digits-pictures
	@echo
	@echo "try next (with $(BIN) on your PATH):"
	@echo "  mixwise train YOUR_FOLDER              a folder of pictures per class"
	@echo "  mixwise predict $(RUN) PICTURE…     --json, --csv, --topk"
	@echo "  mixwise info $(RUN)                 what the model file says about itself"
	@echo "  mixwise list                           every model"
	@echo "  open $(RUN)/report.html             curves, confusion matrix, worst mistakes"

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed
	$(BIN)/python benchmarks/training.py

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache
