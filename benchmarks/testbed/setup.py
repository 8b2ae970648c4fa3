"""Builds the emulated accelerator in place: ``python benchmarks/testbed/setup.py build_ext --inplace``.

It is for benchmarks and tests alone, so it is no part of the package; it uses what the package's compiled core has found of MXNet's
functions, and must be built from the same checkout as that.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
os.chdir(str(HERE))  # the checkout's own pyproject.toml is about something else

setup(
    name="prophet_mx_testbed",
    packages=[],
    package_dir={"benchmarks.testbed": "."},
    options={"build": {"build_base": str(HERE.parents[1] / "build" / "testbed")}},
    ext_modules=cythonize(
        [
            Extension(
                "benchmarks.testbed." + name,
                [name + ".pyx"],
                extra_compile_args=["-O2", "-std=gnu11", "-pthread"],
                extra_link_args=["-pthread"],
            )
            for name in ("accelerator", "copies", "stream")
        ],
        include_path=[str(HERE.parents[1] / "_ext")],
        language_level=3,
    ),
)
