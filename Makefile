# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready

.PHONY: demo test check format lint types layers bench clean

demo: $(READY)       ## train FedRep, FedGradNorm and the direct rule on embedded data
	$(BIN)/fedgradnorm demo $(ARGS)

test: $(READY)       ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

check: lint types layers test   ## the gate: format, lint, types, layers, tests

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

format: $(READY)     ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv runs build dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

bench: $(READY)      ## speed, scale and, where there is one, GPU; tables under benchmarks/results
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python -c "import torch, sys; sys.exit(not torch.cuda.is_available())" && \
	  $(BIN)/python benchmarks/gpu.py || true
