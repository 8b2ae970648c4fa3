"""The compiled part of prophet_mx: the Cython extensions of ``prophet_mx._core``, one per .pyx file of the folder. A file in a folder below
is included by the extension of that name. Everything else about the package is in pyproject.toml.

They need neither MXNet nor its headers: they find MXNet's C functions at run time, so one build serves the CPU and
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

CORE = [
    Extension(
        os.path.splitext(os.path.relpath(source, "_ext"))[0].replace(os.sep, "."),
        sources=[source],
        extra_compile_args=["-O2", "-std=gnu11", "-pthread", "-fexceptions", "-ffp-contract=off"]
        + (["-g", "-fno-omit-frame-pointer"] if SANITIZE else [])
        + FLAGS,
        extra_link_args=["-pthread"] + FLAGS,
    )
    for source in sorted(glob("_ext/prophet_mx/_core/*.pyx"))
]

JOBS = os.cpu_count() or 1

setup(
    ext_modules=cythonize(CORE, nthreads=JOBS, include_path=["_ext"], language_level=3, compiler_directives={"embedsignature": True}),
    options={"build_ext": {"parallel": JOBS}},
)
