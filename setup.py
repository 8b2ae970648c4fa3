"""The compiled part of prophet_mx, ``prophet_mx._core``; everything else about the package is in pyproject.toml.

The extension needs neither MXNet nor its headers: it finds MXNet's C functions at run time, so one build serves the CPU and
the CUDA wheel.

SANITIZE in the environment adds instrumentation, for 'make check-native': SANITIZE=address,undefined or SANITIZE=thread (gcc's names),
or SANITIZE=none for debugging symbols alone. Such a build is for tests only; use a --build-base of its own.
"""
import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZE = os.environ.get("SANITIZE", "")
FLAGS = ["-fsanitize=" + SANITIZE, "-fno-sanitize-recover=undefined"] if SANITIZE not in ("", "none") else []

CORE = Extension(
    "prophet_mx._core",
    sources=["prophet_mx/_core/_core.pyx"],
    depends=sorted(glob("prophet_mx/_core/*.pyx") + glob("benchmarks/testbed/*.pyx")),
    extra_compile_args=["-O2", "-std=gnu11", "-pthread"] + (["-g", "-fno-omit-frame-pointer"] if SANITIZE else []) + FLAGS,
    extra_link_args=["-pthread"] + FLAGS,
)

setup(
    ext_modules=cythonize(
        [CORE], include_path=["prophet_mx/_core", "benchmarks/testbed"], language_level=3, compiler_directives={"embedsignature": True}
    ),
)
