# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN    := .venv/bin
USE    := .venv/.ready-to-use
DEV    := .venv/.ready-to-develop
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs test test-slow coverage test-cpus check format lint types layers workflows dist bench theory clean

demo: $(USE)         ## train FedRep, FedGradNorm and the direct rule on embedded data
	$(BIN)/fedgradnorm demo $(ARGS)

docs: $(DEV)       ## the site, in build/site; every warning is an error
	$(BIN)/python -m sphinx -W --keep-going -n docs build/site $(ARGS)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test: $(DEV)       ## the tests to run before a merge: laws and behavior
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(DEV)  ## kills, real processes over TLS, browsers, pages, benchmarks, oldest dependencies
	$(PYTEST) -m slow $(ARGS)

coverage: $(DEV)   ## which lines the tests reach, processes of their own aside
	$(PYTEST) --cov --cov-report=term:skip-covered $(ARGS)

test-cpus: $(DEV)  ## engines and resuming with older instructions, more threads, other orders
	PYTHON=$(BIN)/python tools/test-cpus.sh $(ARGS)

check: lint types layers test test-slow   ## the gate: format, lint, types, layers, all tests

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

bench: $(DEV)      ## speed, registered clients, clients alone, memory, federation and, where there is one, GPU
	for script in speed registered alone head_init larger_than_memory balancer balancer_use gpu; do $(BIN)/python benchmarks/$$script.py $(ARGS) || exit 1; done
	$(BIN)/python benchmarks/federation.py
	for script in liars honest; do $(BIN)/python benchmarks/$$script.py --threads 1 || exit 1; done

theory: $(DEV)     ## the paper's convergence claims, checked on problems with known answers
	$(BIN)/python -m studies.theory $(ARGS)

.venv:
	$(PYTHON) -m venv .venv

$(USE): pyproject.toml constraints.txt | .venv
	$(PIP) -e ".[report,files]"
	touch $@

$(DEV): pyproject.toml constraints.txt | .venv
	$(PIP) -e ".[dev]"
	touch $@ $(USE)
