"""Files of a checkpoint, named as in MXNet's examples: PREFIX-0003.params and the like for rank 0, PREFIX-1-0003.params for rank 1.

Every worker writes its own. Weights and optimizer states are the same on all, but the running statistics of batch norm are not.
PREFIX-0003.workers says how many workers there were: so an epoch that not all of them have saved is told from one of a smaller job.
"""

import logging
import os
import re
import tempfile
from contextlib import contextmanager

from .options import AUTO, OptionError


class Checkpoints:
    """The checkpoints under ``prefix`` (None: there are none) of the worker ``rank`` of so many ``workers``. A worker deletes its own files
    of an epoch once ``keep`` later ones have been saved by all workers (None: never)."""

    def __init__(self, prefix, rank, workers, period=1, keep=None):
        self.prefix, self.rank, self.workers, self.period, self.keep = prefix, rank, workers, period, keep
        if prefix is not None:
            os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)

    def own(self):
        """The prefix of this worker's files."""
        return self._of(self.rank)

    def _of(self, rank):
        return self.prefix if rank == 0 else f"{self.prefix}-{rank}"

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
            if self.rank == 0:
                with open(os.path.join(own, f"{name}-{epochs:04d}.workers"), "w", encoding="ascii") as file:
                    file.write(f"{self.workers}\n")
            for file in sorted(os.listdir(own), key=lambda file: file.endswith(".params")):
                os.replace(os.path.join(own, file), os.path.join(folder, file))
        logging.info("Saved checkpoint to %s-%04d.params", self.own(), epochs)
        self._prune()

    def _prune(self):
        """Delete this worker's files of the epochs that are no longer needed. Without its parameters an epoch does not count, so they go
        first: a job that is killed here leaves nothing that looks like a checkpoint."""
        complete = [epochs for epochs in self._epochs() if self._complete(epochs, self.workers)]
        if self.keep is None or len(complete) < self.keep:
            return
        folder, name = os.path.split(self.own())
        pattern = re.compile(re.escape(name) + r"-(\d{4,})\.(\w+)")
        matches = filter(None, map(pattern.fullmatch, os.listdir(folder or ".")))
        old = [match for match in matches if int(match.group(1)) < complete[-self.keep]]
        for match in sorted(old, key=lambda match: match.group(2) != "params"):
            os.remove(os.path.join(folder, match.group()))

    def _complete(self, epochs, workers):
        """Whether so many workers have all saved this epoch."""
        return all(os.path.exists(f"{self._of(rank)}-{epochs:04d}.params") for rank in range(workers))

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

    def newest(self):
        """The last epoch that all workers of its job have saved; None if there is none.

        Raises
        ------
        OptionError
            that job had fewer workers than this one, which therefore cannot go on from there, and would overwrite it.
        """
        for epochs in reversed(self._epochs()):
            saved_by = self._saved_by(epochs)
            if not self._complete(epochs, saved_by):
                continue  # the job was killed at this epoch
            if saved_by < self.workers:
                raise OptionError(
                    f"--load-epoch {AUTO}: {self.prefix}-{epochs:04d}.params was saved by {saved_by} worker(s), and this job has "
                    f"{self.workers}; start {saved_by} worker(s), or give --load-epoch {epochs}, and further workers take rank 0's files, "
                    "or begin anew with another --model-prefix"
                )
            return epochs
        return None

    def _saved_by(self, epochs):
        """How many workers the job had that saved this epoch. Where that was not written down, it is how many have files of it."""
        try:
            with open(f"{self.prefix}-{epochs:04d}.workers", encoding="ascii") as file:
                return int(file.read())
        except FileNotFoundError:
            folder, name = os.path.split(self.prefix)
            pattern = re.compile(re.escape(name) + rf"(-\d+)?-{epochs:04d}\.params")
            return sum(pattern.fullmatch(file) is not None for file in os.listdir(folder or "."))

    def _epochs(self):
        """The epochs for which rank 0 has files, rising."""
        folder, name = os.path.split(self.prefix)
        pattern = re.compile(re.escape(name) + r"-(\d{4,})\.params")
        return sorted(int(match.group(1)) for match in map(pattern.fullmatch, os.listdir(folder or ".")) if match)


def resume(args, checkpoints):
    """Find the epoch that ``--load-epoch auto`` stands for, and set ``load_epoch`` and ``first_epoch`` of ``args``.

    All workers find the same one: none of them can save another before all have begun to train.
    """
    if args.load_epoch != AUTO:
        return
    args.load_epoch = checkpoints.newest()
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
