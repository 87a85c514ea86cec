# What one types in a checkout.  Needs Python 3.11 or newer, a C compiler and PyPI; no GPU, no CUDA.
#
#   make demo      install into .venv and watch two probes run on the simulated device
#   make test      install and run the tests
#   make lint      style, types, import rules, generated files
#   make native    build the native parts into src/egpu/_native, to run from the tree (PYTHONPATH=src)
#   make gpu-test  every check on a real GPU, from the tree
#   make bench     the benchmarks on a real GPU, from the tree
#   make clean     remove what the above made

VENV ?= .venv
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	echo $$python && break; done)
BIN := $(VENV)/bin
# The environment's cmake and ninja serve where the machine has none.
WITH_VENV := PATH="$(abspath $(BIN)):$$PATH"
SOURCES := $(shell find src native workloads bpf -type f -not -name '*.pyc' -not -path '*/_native/*' \
	2>/dev/null) README.md
EXTRAS := cuda,compile,dev

.PHONY: venv demo test lint native gpu-test bench clean

venv: $(VENV)/.installed

# The dependencies are looked at again only when pyproject.toml itself has changed.
$(VENV)/.installed: pyproject.toml $(SOURCES)
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if cmp -s pyproject.toml $(VENV)/.pyproject; then \
		echo "installing egpu into $(VENV)" && \
		$(BIN)/python -m pip install -qq --no-deps --force-reinstall .; \
	else \
		echo "installing egpu and what it needs into $(VENV) (about a minute)" && \
		$(BIN)/python -m pip install -qq '.[$(EXTRAS)]' && \
		cp pyproject.toml $(VENV)/.pyproject; \
	fi
	@touch $@

demo: venv
	@$(BIN)/egpu demo

test: venv
	$(WITH_VENV) $(BIN)/python -m pytest -n auto --dist loadfile

lint: venv
	.ci/checks $(BIN)

native:
	$(WITH_VENV) cmake -S native -B build/native -DCMAKE_BUILD_TYPE=Release
	$(WITH_VENV) cmake --build build/native
	$(WITH_VENV) cmake --install build/native --prefix src

gpu-test:
	$(PYTHON) tests/gpu/run.py

bench:
	$(PYTHON) bench/run.py

clean:
	rm -rf $(VENV) build dist src/egpu/_native
