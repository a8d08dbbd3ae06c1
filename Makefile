# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN    := .venv/bin
USE    := .venv/.ready-to-use
DEV    := .venv/.ready-to-develop
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# What one runs while working: most of the library, without the slow half of the tests.
QUICK  := $(patsubst %,tests/test_%.py,batches bounds client contributing local_update models participation server settings tasks) \
          $(patsubst %,tests/experiments/test_%.py,checkpoint config history resume run) \
          $(patsubst %,tests/weighting/test_%.py,by_task gradnorm losses) tests/runs

.PHONY: demo docs test quick coverage test-cpus check format lint types layers workflows dist bench theory clean

demo: $(USE)         ## train FedRep, FedGradNorm and the direct rule on embedded data
	$(BIN)/fedgradnorm demo $(ARGS)

docs: $(DEV)       ## the site, in build/site; every warning is an error
	$(BIN)/python -m sphinx -W --keep-going -n docs build/site $(ARGS)

test: $(DEV)       ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

quick: $(DEV)      ## the tests to run while working
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not slow" $(QUICK) $(ARGS)

coverage: $(DEV)   ## which lines the tests reach, processes of their own aside
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered $(ARGS)

test-cpus: $(DEV)  ## engines and resuming with older instructions, more threads, other orders
	PYTHON=$(BIN)/python tools/test-cpus.sh $(ARGS)

check: lint types layers test   ## the gate: format, lint, types, layers, tests

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports

workflows: $(DEV)  ## the GitHub workflows and forms: schema and security
	$(BIN)/zizmor --offline --no-progress .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml

format: $(DEV)     ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(DEV)       ## the wheel and the source archive of a release
	$(BIN)/python -m build --no-isolation --outdir dist

clean:
	rm -rf .venv runs build dist

bench: $(DEV)      ## speed, limits, scale, alone, memory, federation and, where there is one, GPU
	for script in speed limits scale registered ranks alone head_init larger_than_memory streamed balancer balancer_use gpu; do $(BIN)/python benchmarks/$$script.py $(ARGS) || exit 1; done
	$(BIN)/python benchmarks/federation.py
	for script in liars honest; do $(BIN)/python benchmarks/$$script.py --threads 1 || exit 1; done

theory: $(DEV)     ## the paper's convergence claims, checked on problems with known answers
	$(BIN)/python -m studies.theory $(ARGS)

.venv:
	$(PYTHON) -m venv .venv

$(USE): pyproject.toml constraints.txt | .venv
	$(PIP) -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | .venv
	$(PIP) -e ".[dev]"
	touch $@ $(USE)
