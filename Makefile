# Every target sets up .venv by itself. Python 3.11 or newer is all that must be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

.PHONY: demo serve adaptive test long-test check quick-test coverage lint format qa results speed bench-smoke pages \
  site site-serve notebooks sbom lock install-hashed audit clean

demo: $(STAMP)                ## train, protect and attack a small digit classifier; report in build/demo/
	$(BIN)/queen demo

serve: $(STAMP) build/demo/bundle/bundle.json  ## the demo's bundle behind the server, with a key and a curl line to paste
	$(BIN)/python -m queen.demo.serve

build/demo/bundle/bundle.json: | $(STAMP)
	$(BIN)/queen demo --no-price

adaptive: $(STAMP)            ## the same, and attackers who know the sentinel (under 8 minutes)
	$(BIN)/queen demo --adaptive

test: $(STAMP)                ## the test suite (about ten minutes)
	$(PYTEST) -m "not long"

long-test: $(STAMP)           ## the same, what takes half a minute each, and three times as many random streams
	QUEEN_TESTS=long $(PYTEST)

check: $(STAMP)               ## before every commit: the linters, and beside them the quick tests (under 3 minutes)
	$(MAKE) --jobs=2 lint quick-test

quick-test: $(STAMP)          ## all tests that are neither slow nor need Redis, a browser, Ray or other people's clients
	$(PYTEST) -m "not slow and not real and not long"

coverage: $(STAMP)            ## the test suite again, with branch coverage, which costs half as much time more
	$(PYTEST) -m "not long" --cov --cov-report=term

lint: $(STAMP)                ## style, types, the direction of imports, and whether everything is pinned
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.pins

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

qa: $(STAMP)                  ## the quick mode of every reliability scenario (under 20 minutes); reports in build/qa/
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.qa $(QA)

results: $(STAMP)             ## run the whole demo and the speed tests, and put tables and plot into the documents
	mkdir -p build results/demo results/price results/max_copy results/speed
	$(BIN)/queen demo --adaptive --price-seeds 3 --json --out build/results > build/demo.json && mv build/demo.json results/demo/demo.json
	$(BIN)/queen price build/results/bundle --json > build/price.json && mv build/price.json results/price/demo.json
	$(BIN)/python benchmarks/price/max_copy.py --price results/price/demo.json --json > build/max_copy.json && mv build/max_copy.json results/max_copy/demo.json
	$(BIN)/queen speed --json > build/speed.json && mv build/speed.json results/speed/cpu-2-cores.json
	$(BIN)/python benchmarks/speed/rivals.py --json > build/rivals.json && mv build/rivals.json results/speed/rivals-cpu-2-cores.json
	$(BIN)/python -m tools.pages

bench-smoke: $(STAMP)         ## every defense against every attack on small digits (under 10 minutes); report in build/smoke/
	$(BIN)/queen bench run benchmarks/smoke.yaml --out build/smoke
	$(BIN)/queen bench table build/smoke

pages: $(STAMP)               ## put the committed results into README and docs, and draw the picture of the house
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.house

site: $(STAMP)                ## the documentation as a site, in build/site; open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

site-serve: $(STAMP)          ## the same in a browser, built anew whenever a document changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

notebooks: $(STAMP)           ## run the notebooks of docs/notebooks and store what they print
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.notebooks

speed: $(STAMP)               ## the guard's cost, as ratios inside one run
	$(BIN)/queen speed

sbom: $(STAMP)                ## the bill of materials, sbom.cdx.json, from what is installed
	$(BIN)/python -m tools.sbom

lock: $(STAMP)                ## requirements.lock, from a package index: make lock INDEX=https://...
	$(BIN)/python -m tools.pins --lock "$(INDEX)"

install-hashed:               ## .venv anew, from files with the sums of requirements.lock and from nothing else
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

audit:                        ## known holes in the pinned packages; needs a network, and a .venv of its own in build/
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit==2.10.1 \
	  || { echo "make audit needs a network: pip-audit could not be installed"; exit 1; }
	build/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off \
	  || { echo "make audit: a package above has a known hole, or the database of holes was out of reach"; exit 1; }

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "queen needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv build
