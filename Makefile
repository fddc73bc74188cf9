# The menu. `make help` prints it; every target makes .venv first.
SHELL := /bin/bash
PYTHON ?= python3.11
FLAVOR ?= cpu
RUN := .venv/bin/python build.py

.DEFAULT_GOAL := help
.PHONY: help machine venv build test check edit refresh rebase wheels image verify publish lock reproduce upstream engine fuzz bench bench-shard stock-table compile-gate no-leak lint clean

help:       ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12
machine:    ## install what a bare Debian machine lacks (as root); says what before it does
	@ci/install-debian.sh --make
venv: machine ## make .venv with all that a checkout needs
	@PYTHON=$(PYTHON) ci/venv.sh
build: venv ## sources, patches, wheels, image, proof: all up to a verified image
	@$(RUN) build --flavor $(FLAVOR)
test: venv  ## the test suite
	@ci/test.sh
check: venv ## the patch series and the pins, in seconds
	@$(RUN) check
edit: venv  ## open a series as commits: make edit PROJECT=lmcache
	@$(RUN) edit $(PROJECT)
refresh: venv ## write the series back: make refresh PROJECT=lmcache
	@$(RUN) refresh $(PROJECT)
rebase: venv ## what a new release means for each patch: make rebase PROJECT=lmcache TO=0.5.6
	@$(RUN) rebase $(PROJECT) --to $(TO)
wheels: venv ## the patched wheels
	@$(RUN) wheels --flavor $(FLAVOR)
image: venv ## the image, not yet verified
	@$(RUN) image --flavor $(FLAVOR)
verify: venv ## prove the image
	@$(RUN) verify $(FLAVOR)
publish: venv ## push a verified image: make publish TO=registry/name:tag
	@$(RUN) publish $(FLAVOR) --to $(TO)
lock: venv  ## resolve every lock anew
	@$(RUN) lock
reproduce: venv ## build wheels and image twice and compare every byte
	@$(RUN) reproduce --flavor $(FLAVOR)
upstream: venv ## all of upstream's own tests on the patched tree, against the stock baseline
	@$(RUN) upstream --scope all
engine: venv ## a real engine on two ranks, asked and restarted: where its answers come from
	@ci/engine.sh
fuzz: venv  ## fuzz the reply reader for an hour, or: make fuzz FOR=600
	@ci/fuzz.sh $(FOR)
bench: venv ## stock and patched RESP client side by side
	@ci/bench.sh
bench-shard: venv ## stock and patched ranks: bytes and time of a store, time of a load
	@ci/bench_shard.sh
stock-table: venv ## what the stock release makes of every fault of a sharded load
	@ci/stock_table.sh
compile-gate: venv ## compile the kernels for SM103, SM100 and SM90, and look at the device code
	@ci/compile_gate.sh
no-leak: venv ## ten thousand mixed requests on three ranks in each mode, or: make no-leak REQUESTS=500
	@ci/no_leak.sh $(REQUESTS)
lint: venv  ## ruff, mypy and hadolint
	@ci/lint.sh
clean:      ## remove everything that was built
	rm -rf build .venv
