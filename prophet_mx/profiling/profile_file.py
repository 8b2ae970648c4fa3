"""The file of a profile: JSON text, written whole or not at all, and read with suspicion.

``{"format": "prophet_mx profile 1", "name": ..., "gradients": [{"name", "bytes", "forward", "backward", "ready", "spread"},
...], "steps": [[indices], ...]}``: gradients in forward order, seconds or null, steps in the order they become ready.
"""

import json
import os
import secrets
import stat
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..errors import ProfileError

FORMAT = "prophet_mx profile 1"
GRADIENT_KEYS = ("name", "bytes", "forward", "backward", "ready", "spread")


def dumps(name: str, gradients: Sequence[Mapping[str, Any]], steps: Sequence[Sequence[int]]) -> str:
    """The JSON text of a profile, one gradient or step per line."""

    def lines(values: Sequence[Any]) -> str:
        return ",\n".join(" " + json.dumps(value, separators=(",", ":")) for value in values)

    return (
        f'{{"format": {json.dumps(FORMAT)},\n "name": {json.dumps(name)},\n "gradients": [\n{lines(gradients)}\n ],\n'
        f' "steps": [\n{lines(steps)}\n ]}}\n'
    )


def loads(text: str) -> Tuple[Any, List[Dict[str, Any]], List[List[Any]]]:
    """``(name, gradients, steps)`` of a profile's JSON text, with the right keys; the values are not checked.

    Raises ProfileError if the text is truncated or not a profile.
    """
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except ProfileError:
        raise
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ProfileError(f"not a complete JSON text: {error}") from None
    stated = document.get("format") if isinstance(document, dict) else None
    if stated != FORMAT:
        raise ProfileError(f"not a profile of this version: its format is {stated!r:.80}, not {FORMAT!r}")
    _need_keys(document, ("format", "name", "gradients", "steps"), "a profile")
    gradients, steps = document["gradients"], document["steps"]
    if not isinstance(gradients, list) or not isinstance(steps, list) or not all(isinstance(s, list) for s in steps):
        raise ProfileError("a profile's gradients are a list, its steps a list of lists")
    for gradient in gradients:
        _need_keys(gradient, GRADIENT_KEYS, "a gradient")
    return document["name"], gradients, steps


def _need_keys(value: Any, keys: Sequence[str], what: str) -> None:
    if not isinstance(value, dict) or set(value) != set(keys):
        found = ", ".join(map(repr, list(value)[:10])) if isinstance(value, dict) else type(value).__name__
        raise ProfileError(f"{what} has exactly the keys {', '.join(keys)}, not {found}")


def _no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProfileError("the same key twice in " + ", ".join(repr(key) for key, _ in pairs[:10]))
    return result


def replace_text(path: str, text: str) -> None:
    """Put ``text`` into the file ``path`` at once: a reader sees the old content or the new, never a part.

    A new file gets the usual permissions of the process, an old one keeps its own; a link stays a link. At no time can anybody read
    what the permissions of the old file forbid. Lone surrogates, which UTF-8 does not have, become '?'. OSError if it cannot be written, or
    if there is something that is not a regular file (a device, a pipe); then the old file is untouched and no other is left behind.
    """
    target = os.path.realpath(os.fsdecode(path))
    mode = None
    if os.path.exists(target):
        status = os.stat(target)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{target} is not a regular file")
        mode = stat.S_IMODE(status.st_mode) & 0o777
    temporary = f"{target}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else mode & 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
