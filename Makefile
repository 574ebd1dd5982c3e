# The one list of commands. `make` explains them; nothing here needs an activated environment.

# `make PYTHON=python3.12 …` chooses the interpreter that .venv is made from.
PYTHON ?= python3
# What follows a command: `make run ARGS="--dry-run"` (it goes to `stoker submit`), `make test ARGS="-k cache -x"`.
ARGS ?=
# How many tests at once. Four, for two cores: many wait for processes, leases and links of their own. Not more: some
# watch the clock. Each process gets the tests of whole folders, which share servers, and takes from the others at the end.
JOBS ?= 4
PARALLEL = -n $(JOBS) --dist worksteal

# `make test ONLY=store`: the tests of one package, and those elsewhere that are named after it.
ONLY ?=
TESTS = $(if $(ONLY),$(wildcard tests/unit/$(ONLY) tests/*/test_$(ONLY)*.py tests/*/test_*_$(ONLY)*.py))
# Packages whose unit tests start no process and open no socket.
QUICK := $(addprefix tests/unit/,core config scheduler views protocol)

VENV := .venv
BIN := $(VENV)/bin
# Stamps live inside .venv, so they vanish together with what they vouch for.
STAMPS := $(VENV)/.stamps

# An activated environment or a foreign PYTHONPATH must not leak into ours. Compiled modules are kept: thousands of
# processes start in the tests, and each would compile them again.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# uv trusts the certificates that this machine trusts, as pip does.
export UV_SYSTEM_CERTS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test quick check format bench soak docs site pins clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMPS)/run ## make .venv with the `stoker` command in it, and shell completion where there is a place for it
	@$(BIN)/stoker completion --install 2>/dev/null || true

run: setup ## show it all on this machine: a coordinator, two workers, a manifest (ARGS=…)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/15_a_fleet_on_one_machine/run.sh $(ARGS)
	@echo "(\`stoker\` is $(BIN)/stoker here: export PATH=\$$PATH:\$$PWD/$(BIN))" >&2

test: check $(STAMPS)/torch $(STAMPS)/programs ## install what tests need, check the code, run every test (ONLY=store, ARGS=…)
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(TESTS) $(ARGS)

quick: $(STAMPS)/dev ## lint, and the tests of pure rules: no torch, database or process (ARGS=…)
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal -q -p no:cacheprovider $(QUICK) $(ARGS)

check: $(STAMPS)/dev ## format, lint, types, layers and the length of a run's journey, without changing a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/journeys.py run

format: $(STAMPS)/dev ## format the code and fix what can be fixed safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --exit-zero .

bench: $(STAMPS)/torch ## measure Stoker beside its peers (ARGS=…)
	$(BIN)/python benchmarks/run_all.py $(ARGS)

soak: $(STAMPS)/torch $(STAMPS)/docs $(STAMPS)/programs ## run every test with full counts; takes its time (ARGS=…)
	$(BIN)/python -m pytest --hypothesis-profile=seeking $(PARALLEL) $(ARGS)

docs: $(STAMPS)/torch $(STAMPS)/docs ## write the reference pages and transcripts again, then build the site
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/transcripts.py
	$(SITE)

site: $(STAMPS)/docs ## build the documentation site alone: build/site/index.html
	$(SITE)

# dev first: the others are then subsets of it or agree with it. An existing pin stays
# unless it must move; `make pins ARGS=--upgrade` moves them all.
pins: | $(STAMPS)/venv ## pin requirements/ again after a change of dependencies
	@$(BIN)/python -m pip install --quiet uv
	$(COMPILE) pyproject.toml --extra tabular --extra all --group dev --output-file requirements/dev.txt $(ARGS)
	$(COMPILE) pyproject.toml --extra tabular --extra fleet --extra serve --constraint requirements/dev.txt --output-file requirements/run.txt $(ARGS)
	$(COMPILE) --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt $(ARGS)

clean: ## remove .venv, caches and build output; results and the store stay
	rm -rf $(VENV) build dist .bench .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# ---------------------------------------------------------------- how .venv comes to be

# No header, notes or index addresses: the pins are the same wherever they are made.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url

# A link that leads nowhere, or a page that no other lists, fails the build.
SITE = $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -c docs -d build/doctrees . build/site

# uv installs in seconds what takes pip a minute. Where it can't be had, or can't see the index that pip is set up
# for, pip does the same.
define install
{ test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --retries 1 --timeout 15 uv; } && \
$(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || \
{ echo "uv can't install this here; pip tries, which takes longer"; $(BIN)/python -m pip install --quiet $(1); } || \
{ echo "hint: is a package index within reach? What is installed already stays; run make again to go on." >&2; exit 1; }
endef

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Stoker needs Python 3.11 or newer; '$(PYTHON)' is not." >&2; \
	  echo "hint: install one, or name it: make PYTHON=/path/to/python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' can't make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "hint: install them (Debian, Ubuntu: apt install python3-venv), or name another interpreter: make PYTHON=… …" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: requirements/run.txt pyproject.toml | $(STAMPS)/venv
	@echo "installing Stoker and its tabular cookbook into $(VENV)"
	@$(call install,-r requirements/run.txt)
	@$(call install,--no-deps --editable .)
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/run
	@echo "installing what tests and checks need into $(VENV)"
	@$(call install,-r requirements/dev.txt)
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/run
	@echo "installing what builds the documentation site into $(VENV)"
	@$(call install,-r requirements/docs.txt)
	@touch $@

# By pip: a build for the CPU alone that lies on a machine (pip's find-links) saves gigabytes, and uv does not look there.
$(STAMPS)/torch: requirements/torch.txt $(STAMPS)/dev
	@echo "installing torch for the tests of gangs and sequences, PEFT for those of adapters, ONNX Runtime for those of crossval"
	@$(BIN)/python -m pip install --quiet -r requirements/torch.txt
	@touch $@

# Programs that tests use beside our own: the pages' examples are pasted into zsh, fish completes words, JSON goes through jq, certificates come
# from openssl, the queue is tested on PostgreSQL, which gets no database of its own and so starts no service, kubectl
# talks to a server of ours, Chromium opens the pages and tmux the cockpit. nginx, sshd
# and Slurm only where nobody minds servers that start with the machine. Only whoever may installs them,
# and nothing fails where they can't be had: the tests that need them skip and say so. Tried again the next time if the
# packages were out of reach.
PROGRAMS := zsh fish jq openssl postgres kubectl tmux chromium $(if $(CI),nginx sshd munged slurmctld slurmd squeue)
PACKAGES := s/chromium/chromium fonts-dejavu-core/; s/kubectl/kubernetes-client/; s/nginx/nginx-light/; s/postgres/postgresql/; s/sshd/openssh-server/; s/munged/munge/; s/squeue/slurm-client/
NO_CLUSTER := /etc/postgresql-common/createcluster.conf
APT = env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 RUNLEVEL=1 apt-get -q=2 -o Acquire::Retries=1 -o Acquire::http::Timeout=10 -o DPkg::Lock::Timeout=60

$(STAMPS)/programs: | $(STAMPS)/venv
	@PATH="$$PATH:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; \
	missing=; for one in $(PROGRAMS); do command -v $$one >/dev/null || missing="$$missing $$one"; done; \
	missing=$$(echo "$$missing" | sed '$(PACKAGES)'); \
	if [ -z "$$missing" ] || ! command -v apt-get >/dev/null; then touch $@; exit; fi; \
	if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as="sudo -n"; else touch $@; exit; fi; \
	echo "installing$$missing, for the tests that use them"; \
	case "$$missing" in *postgresql*) [ -e $(NO_CLUSTER) ] || { $$as mkdir -p $(dir $(NO_CLUSTER)) && \
	  echo 'create_main_cluster = false' | $$as tee $(NO_CLUSTER) >/dev/null; } ;; esac; \
	{ $$as $(APT) install --no-install-recommends $$missing || { $$as $(APT) update && $$as $(APT) install --no-install-recommends $$missing; }; } \
	  >/dev/null 2>&1 && touch $@ || echo "$$missing can't be installed now; their tests skip"
