"""Build of prophet_mx: pure Python plus one Cython extension, ``prophet_mx._core``.

The extension needs neither MXNet nor its headers: it finds MXNet's C functions at run time, so one build serves the CPU and
the CUDA wheel.

SANITIZE in the environment adds instrumentation, for 'make check-native': SANITIZE=address,undefined or SANITIZE=thread (gcc's names),
or SANITIZE=none for debugging symbols alone. Such a build is for tests only; use a --build-base of its own.
"""
import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

SANITIZE = os.environ.get("SANITIZE", "")
FLAGS = ["-fsanitize=" + SANITIZE, "-fno-sanitize-recover=undefined"] if SANITIZE not in ("", "none") else []

CORE = Extension(
    "prophet_mx._core",
    sources=["_ext/_core.pyx"],
    depends=sorted(set(glob("_ext/*.pyx") + glob("_ext/*.pxi")) - {"_ext/_core.pyx"}),
    extra_compile_args=["-O2", "-std=gnu11", "-pthread"] + (["-g", "-fno-omit-frame-pointer"] if SANITIZE else []) + FLAGS,
    extra_link_args=["-pthread"] + FLAGS,
)

MXNET_RUNTIME = ["numpy>=1.17,<1.24"]

setup(
    name="prophet_mx",
    version="0.1.0",
    description="Schedules the gradient traffic of MXNet dist_sync training: same result, less time per iteration",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["prophet_mx", "prophet_mx.*"]),
    package_data={"prophet_mx.monitoring": ["templates/*"]},
    ext_modules=cythonize(
        [CORE], include_path=["_ext"], language_level=3, compiler_directives={"embedsignature": True}
    ),
    python_requires=">=3.8,<3.12",
    install_requires=MXNET_RUNTIME + ["psutil>=5.6"],
    extras_require={
        "cpu": ["mxnet==1.9.1"],
        "cu112": ["mxnet-cu112==1.9.1"],
        "plot": ["matplotlib>=3.5"],
        "report": ["jinja2>=3"],
        "metrics": ["prometheus_client>=0.14"],
        "tensorboard": ["tensorboardX>=2.5"],
        "docs": ["mkdocs==1.6.1"],
        "test": ["pytest>=7", "pytest-xdist>=3", "hypothesis>=6", "scikit-learn>=1.0", "tqdm>=4.57", "pillow>=8", "build>=1", "pyyaml>=5.4", "jinja2>=3"],
        "fuzz": ["atheris>=2.3"],
        "demo": ["scikit-learn>=1.0", "tqdm>=4.57", "pillow>=8"],
    },
    entry_points={"console_scripts": ["prophet-mx = prophet_mx.cli.main:main"]},
    zip_safe=False,
)
