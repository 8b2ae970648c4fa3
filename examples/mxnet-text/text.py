"""Text for both scripts: the characters of a file, as numbers. Without a file, it is the source of some modules of Python itself."""

import glob
import os

import numpy as np

MODULES = ("argparse", "ast", "configparser", "datetime", "decimal", "difflib", "email/message", "fractions", "heapq", "inspect")


def load(path):
    """All characters of the file ``path``, or of Python's own modules."""
    if path is None:
        folder = os.path.dirname(os.__file__)
        paths = [file for name in MODULES for file in glob.glob(os.path.join(folder, name + ".py"))]
    else:
        paths = [path]
    texts = []
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    return "\n".join(texts)


def numbered(text):
    """The text as numbers from 1 on, by character, and how many different ones there are; 0 is left for padding."""
    alphabet = {character: place for place, character in enumerate(sorted(set(text)), 1)}
    return np.array([alphabet[character] for character in text], dtype="int32"), len(alphabet) + 1
