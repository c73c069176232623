# make demo | test | check | format | docs | wheels | live | torture | bench | studies | locked | sbom | audit   the rest: fedworth --help
# the page is tested in Chromium: one that is there, or Debian's where make may install it, else those tests are skipped
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NOT_LIVE := --ignore tests/recording/flower/test_live.py --ignore tests/recording/flower_old/test_live.py
SOURCES := src studies tests benchmarks tools examples

export FLWR_TELEMETRY_ENABLED := 0

.PHONY: demo test chromium check format docs wheels live torture bench studies locked lock sbom audit clean

demo: $(STAMP)
	$(BIN)/fedworth run --seed 25 --copy 9=0 --out runs/demo --resume

# flwr and nvflare pin what others use, so each is tested in an environment of its own, as the trackers are; flwr in its
# oldest version too
test: $(STAMP) .venv-flower/.installed .venv-flower-oldest/.installed .venv-nvflare/.installed \
		.venv-trackers/.installed chromium
	$(BIN)/python -m pytest -rs -n 2 --dist worksteal --ignore tests/recording/flower \
		--ignore tests/recording/flower_old --ignore tests/recording/nvflare --ignore tests/recording/trackers
	.venv-flower/bin/python -m pytest tests/recording/flower tests/recording/flower_old $(NOT_LIVE)
	.venv-flower-oldest/bin/python -m pytest tests/recording/flower_old $(NOT_LIVE)
	.venv-nvflare/bin/python -m pytest tests/recording/nvflare
	.venv-trackers/bin/python -m pytest tests/recording/trackers

# a browser to test the page in: installed only as root and by apt-get; elsewhere the tests say what to install
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		[ -n "$$FEDWORTH_CHROMIUM" ] || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium; } || \
		echo "no Chromium: the page is not tested in a browser; apt-get install chromium, or set FEDWORTH_CHROMIUM"

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# the site, in build/site: pages of docs/, the reference of names, notebooks, a gallery of seeded runs; KaTeX comes by npm
docs: $(STAMP) .venv-docs/.installed
	$(BIN)/python -m tools.site stage build/docs
	.venv-docs/bin/zensical build --strict --clean
	$(BIN)/python -m tools.site check build/site

# the wheel in a fresh environment of every Python from 3.11 on that is here, and the demo run by it: gigabytes
wheels: $(STAMP)
	$(BIN)/python -m tools.wheels

# servers and clients as processes of their own, one of them killed in a round; the oldest grid too: minutes
live: .venv-flower/.installed .venv-flower-oldest/.installed .venv-flower-1.22/.installed
	.venv-flower/bin/python -m pytest tests/recording/flower/test_live.py tests/recording/flower_old/test_live.py
	.venv-flower-oldest/bin/python -m pytest tests/recording/flower_old/test_live.py
	.venv-flower-1.22/bin/python -m pytest tests/recording/flower $(NOT_LIVE) \
		--ignore tests/recording/flower/test_old_apps.py

# every attack of docs/reliability.md, counted: an hour and more; one alone: python -m tools.torture power
torture: $(STAMP)
	$(BIN)/python -m tools.torture

# the environment again, every wheel held against its sha256; of one platform, so `make` itself goes by versions alone
locked: $(STAMP)
	$(BIN)/pip install --quiet --force-reinstall --no-deps --require-hashes --requirement locks/main.txt

# the sha256 of every pinned package, anew after a pin has changed
lock: $(STAMP)
	$(BIN)/python tools/supply.py lock constraints.txt locks/main.txt
	for name in $(patsubst constraints-%.txt,%,$(wildcard constraints-*.txt)); do \
		.venv-$$name/bin/python tools/supply.py lock constraints-$$name.txt locks/$$name.txt; done

# a bill of materials (CycloneDX) of what is installed
sbom: $(STAMP)
	$(BIN)/python tools/supply.py sbom locks/main.txt sbom.json

# known faults of the pinned packages; pip-audit and its database must be reachable
audit: $(STAMP)
	@$(BIN)/pip install --quiet pip-audit || { echo "pip-audit cannot be reached from here: run make audit where it can"; exit 1; }
	$(BIN)/pip-audit --no-deps --disable-pip --require-hashes --requirement locks/main.txt

# ratios against the naive loop, on an idle machine, about 25 minutes; fails if a bar is missed
# the tables of docs/benchmarks.md from one run: FEDWORTH_DATA=… make bench TABLES=docs/benchmarks.md
bench: $(STAMP)
	$(BIN)/pip install --quiet --group bench
	@failed=0; \
	for script in end_to_end.py starts.py oracle.py cells.py completion.py ledger_io.py heavy.py many.py large.py; do echo; echo "# $$script"; \
		$(BIN)/python benchmarks/table.py $(if $(TABLES),--write $(TABLES)) $$script || failed=1; done; \
	exit $$failed

# the paper's studies as docs/results.md shows them: about two hours on one processor, resumable; data sets in $$FEDWORTH_DATA
# To see that everything works, in a minute: make studies SCALE=tiny PAGES=build/tiny
STUDIES := regime fairness noisy-data noisy-labels spectrum time sensitivity
SCALE := page
PAGES := docs
OUT := runs/$(SCALE)
studies: $(STAMP)
	for study in $(STUDIES); do $(BIN)/python -m studies $$study --scale $(SCALE) --out $(OUT) || exit 1; done
	mkdir -p $(PAGES)/figures
	cp $(OUT)/results.md $(OUT)/results-appendix.md $(PAGES)/
	cp $(OUT)/figures/* $(PAGES)/figures/

# torch first and by its exact version: a range would take the newest build, with gigabytes of CUDA
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

# no torch and no fedworth: Zensical reads the sources, and runs none of them
.venv-docs/.installed: pyproject.toml constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --upgrade "pip>=25.1"
	.venv-docs/bin/pip install --quiet --constraint constraints-docs.txt --group docs
	touch $@

.venv-%/.installed: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --upgrade "pip>=25.1"
	.venv-$*/bin/pip install --quiet --constraint constraints-$*.txt torch
	.venv-$*/bin/pip install --quiet --constraint constraints-$*.txt --editable ".[$(firstword $(subst -, ,$*))]" --group test-$*
	touch $@

clean:
	rm -rf $(VENV) .venv-* runs build .mypy_cache .ruff_cache
