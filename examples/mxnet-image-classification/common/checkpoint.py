"""Files of a checkpoint, named as in MXNet's examples: PREFIX-0003.params and the like for rank 0, PREFIX-1-0003.params for rank 1.

Every worker writes its own. Weights and optimizer states are the same on all, but the running statistics of batch norm are not.
"""

import logging
import os
import re
import tempfile
from contextlib import contextmanager

from .options import AUTO, OptionError


class Checkpoints:
    """The checkpoints of one worker under ``prefix`` (None: there are none)."""

    def __init__(self, prefix, rank, period=1):
        self.prefix, self.rank, self.period = prefix, rank, period
        if prefix is not None:
            os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)

    def own(self):
        """The prefix of this worker's files."""
        return self.prefix if self.rank == 0 else f"{self.prefix}-{self.rank}"

    def due(self, epochs):
        """Whether to write a checkpoint after this number of epochs."""
        return self.prefix is not None and epochs % self.period == 0

    @contextmanager
    def writing(self, epochs):
        """Gives a prefix to write under. The files get their names when all are complete, the parameters last. So a job that is killed
        never leaves an incomplete checkpoint that looks complete."""
        folder, name = os.path.split(self.own())
        with tempfile.TemporaryDirectory(dir=folder or ".", prefix=name + ".") as own:
            yield os.path.join(own, name)
            for file in sorted(os.listdir(own), key=lambda file: file.endswith(".params")):
                os.replace(os.path.join(own, file), os.path.join(folder, file))
        logging.info("Saved checkpoint to %s-%04d.params", self.own(), epochs)

    def find(self, epochs):
        """The prefix of the files to resume from: this worker's, or else rank 0's.

        Raises
        ------
        OptionError
            there are none of that epoch.
        """
        for prefix in (self.own(), self.prefix):
            if os.path.exists(f"{prefix}-{epochs:04d}.params"):
                if prefix != self.own():
                    logging.warning(
                        "%s-%04d.params does not exist: using rank 0's, whose running statistics of batch norm are not this worker's",
                        self.own(),
                        epochs,
                    )
                return prefix
        there = self._epochs()
        others = f"there are those of epoch {', '.join(map(str, there))}" if there else "there is no other epoch"
        raise OptionError(f"--load-epoch {epochs}: there is no file {self.prefix}-{epochs:04d}.params; {others}")

    def newest(self, workers):
        """The last epoch for which all workers have saved their files; None if there is none."""
        prefixes = [self.prefix] + [f"{self.prefix}-{rank}" for rank in range(1, workers)]
        whole = [epoch for epoch in self._epochs() if all(os.path.exists(f"{prefix}-{epoch:04d}.params") for prefix in prefixes)]
        return whole[-1] if whole else None

    def _epochs(self):
        """The epochs for which rank 0 has files, rising."""
        folder, name = os.path.split(self.prefix)
        pattern = re.compile(re.escape(name) + r"-(\d{4,})\.params")
        return sorted(int(match.group(1)) for match in map(pattern.fullmatch, os.listdir(folder or ".")) if match)


def resume(args, checkpoints, workers):
    """Find the epoch that ``--load-epoch auto`` stands for, and set ``load_epoch`` and ``first_epoch`` of ``args``.

    All workers find the same one: none of them can save another before all have begun to train.
    """
    if args.load_epoch != AUTO:
        return
    args.load_epoch = checkpoints.newest(workers)
    args.first_epoch = args.load_epoch or 0
    if args.load_epoch is None:
        logging.info("--load-epoch auto: no epoch was saved by all workers yet; training begins at the start")
    elif args.load_epoch >= args.num_epochs:
        logging.info("--load-epoch auto: all %d epochs are done; there is nothing left to train", args.num_epochs)


def states_file(prefix, epochs, expected):
    """The file of optimizer states beside the parameters; None, with a warning if they are ``expected``, if there is none."""
    path = f"{prefix}-{epochs:04d}.states"
    if os.path.exists(path):
        return path
    if expected:
        logging.warning(
            "%s does not exist: momentum and other state start from zero, and the weights will differ from those of an uninterrupted run",
            path,
        )
    return None
