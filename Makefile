# make demo    train a small convnet with one server and two workers on this machine
# make test    build, install into .venv, run the tests against what was installed
# make help    all targets
#
# Everything happens in .venv, made with $(PYTHON) or the first Python of PYTHONS that can do it.

PYTHONS := $(or $(PYTHON),python3.11 python3.10 python3.9 python3.8 python3)
EXTRAS  := cpu,test,demo
VENV    := .venv
PIP     := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check --no-input
ARGS    ?=

SOURCES := setup.py pyproject.toml MANIFEST.in README.md $(shell find prophet_mx _ext -name '*.py' -o -name '*.py[xi]' -o -name '*.px[di]')

# What a Python must have: a version that MXNet 1.9.1 runs on, venv with pip, and the headers that the extension is compiled with.
# That it is run at all matters as well: a version manager's python3.x can exist and only print an error.
define CHECK_PYTHON
import os, sys
if not (3, 8) <= sys.version_info[:2] <= (3, 11):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("has no venv and pip (Debian: apt-get install python3-venv)")
import sysconfig
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit("has no C headers (Debian: apt-get install python3-dev)")
endef
export CHECK_PYTHON

.PHONY: help build demo test wheel clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo 'make demo    train a small convnet on digits: one server, two workers, on this machine'
	@echo 'make test    run the tests (ARGS="-k launch" passes arguments to pytest)'
	@echo 'make build   build prophet_mx and install it with MXNet into $(VENV)'
	@echo 'make wheel   source distribution and wheel into dist/'
	@echo 'make clean   remove everything that was built'
	@echo
	@echo 'PYTHON=...   the Python to use, 3.8 to 3.11 (default: the first of $(PYTHONS) that works)'

build: $(VENV)/.installed

demo: build
	@$(VENV)/bin/prophet-mx launch -n 2 -s 1 -- $(VENV)/bin/python examples/mxnet-image-classification/train_digits.py

# From tests/, and without PYTHONPATH: the checkout's own prophet_mx has no compiled core and must not hide the installed one.
test: build
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python -m pytest $(ARGS)

wheel: build
	@rm -rf build dist
	@echo 'building dist/ ...'
	@$(VENV)/bin/python -m build --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -rf build build.log && ls dist/*

clean:
	rm -rf $(VENV) build build.log dist prophet_mx.egg-info prophet_mx/*.so _ext/*.c .demo .pytest_cache tests/.pytest_cache \
	  .hypothesis tests/.hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@for python in $(PYTHONS); do \
	  if why=$$("$$python" -c "$$CHECK_PYTHON" 2>&1); then \
	    echo "$(VENV): $$("$$python" --version), $$("$$python" -c 'import sys; print(sys.executable)')"; \
	    "$$python" -m venv --clear $(VENV) && touch $@; exit; \
	  fi; \
	  tried="$$tried    $$python: $$(echo "$${why:-does not run}" | head -n 1)\n"; \
	done; \
	printf "prophet_mx needs Python 3.8, 3.9, 3.10 or 3.11, and none was found:\n$$tried%s\n" \
	  "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1

# build/ is removed first: setuptools would put modules that no longer exist from there into the package.
$(VENV)/.installed: $(VENV)/.created $(SOURCES)
	@echo 'installing prophet_mx[$(EXTRAS)] into $(VENV) ...'
	@rm -rf build
	@$(PIP) install '.[$(EXTRAS)]'
	@touch $@
