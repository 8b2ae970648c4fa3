"""Stand-ins for NVIDIA's pip packages and driver: files with the right names, and a library with the functions that doctor calls."""

import os
import shutil
import subprocess

import pytest

from prophet_mx.cuda import DRIVER, LIBRARIES

SOURCE = r"""
#include <string.h>
static const char *names[] = {%(names)s};
static const int versions[][2] = {%(versions)s};
int cuInit(int flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = %(driver)d; return 0; }
int cuDeviceGetCount(int *count) { *count = sizeof versions / sizeof *versions; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, names[device], size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = versions[device][attribute - 75]; return 0; }
int nvrtcVersion(int *major, int *minor) { *major = 11; *minor = 8; return 0; }
"""


def packages(site, without=()):
    """NVIDIA's packages in a folder of packages, with empty files; the folders of the libraries."""
    folders = []
    for library, requirement in LIBRARIES.items():
        if library not in without:
            folder = site / "nvidia" / requirement.partition("-cu11")[0].partition("-")[2].replace("-", "_") / "lib"
            folder.mkdir(parents=True)
            (folder / library).write_bytes(b"")
            folders.append(str(folder))
    (site / "nvidia" / "unrelated" / "lib").mkdir(parents=True)
    (site / "nvidia" / "unrelated" / "lib" / "libunrelated.so.1").write_bytes(b"")
    return sorted(folders)


def wheel(site):
    """The wheel of MXNet for CUDA, as far as pip's records go."""
    (site / "mxnet_cu112-1.9.1.dist-info").mkdir(parents=True)
    (site / "mxnet_cu112-1.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mxnet-cu112\nVersion: 1.9.1\n")


def working(folder, libraries, gpus=(), driver=11080):
    """Libraries that can be loaded, in place of empty files, and the driver's; ``gpus`` are names with compute capabilities."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("needs a C compiler")
    values = {
        "names": ", ".join(f'"{name}"' for name, _ in gpus) or '""',
        "versions": ", ".join(f"{{{major}, {minor}}}" for _, (major, minor) in gpus),
        "driver": driver,
    }
    source, built = folder / "cuda.c", folder / "built.so"
    source.write_text(SOURCE % values)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(built), str(source)], check=True, timeout=60)
    for library in libraries:
        shutil.copy(str(built), str(library))
    shutil.copy(str(built), str(folder / DRIVER))
    os.unlink(str(built))
    return str(folder)
