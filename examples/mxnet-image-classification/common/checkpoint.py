"""Files of a checkpoint, named as in MXNet's examples: PREFIX-0003.params and the like for rank 0, PREFIX-1-0003.params for rank 1.

Every worker writes its own. Weights and optimizer states are the same on all, but the running statistics of batch norm are not.
PREFIX-0003.workers says how many workers there were: so an epoch that not all of them have saved is told from one of a smaller job.
"""

import logging
import os
import re
import tempfile
from contextlib import contextmanager
from functools import lru_cache

import mxnet as mx

from . import files
from .options import AUTO, OptionError

NONE, REFUSED = -1, -2  # what rank 0 tells in place of an epoch: there is none; it cannot resume
SHARED = "--model-prefix has to be in a folder that all machines see"


@lru_cache(maxsize=None)
def _damage(path, size, changed):
    """What is wrong with a file of this ``size`` that was last changed then; a file is not read again while both stay."""
    return files.damage(path)


def damage(path):
    """As :func:`common.files.damage`, without reading a file twice."""
    try:
        status = os.stat(path)
    except OSError:
        return files.damage(path)
    return _damage(path, status.st_size, status.st_mtime_ns)


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
        """Gives a prefix to write under. The files get their names when all are complete and on the disk, the parameters last. So a job
        that is killed never leaves an incomplete checkpoint that looks complete. OptionError if they do not get onto the disk; then there
        are the same files as before."""
        folder, name = os.path.split(self.own())
        with files.writing(f"{self.own()}-{epochs:04d}.params", OptionError), tempfile.TemporaryDirectory(
            dir=folder or ".", prefix=name + "."
        ) as own:
            yield os.path.join(own, name)
            if self.rank == 0:
                with open(os.path.join(own, f"{name}-{epochs:04d}.workers"), "w", encoding="ascii") as file:
                    file.write(f"{self.workers}\n")
            written = sorted(os.listdir(own), key=lambda file: file.endswith(".params"))
            for file in written:
                files.on_disk(os.path.join(own, file))
            for file in written:
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
        """Whether so many workers have all saved this epoch, and every file of it can be read."""
        return not any(self._wrong(rank, epochs) for rank in range(workers))

    def _wrong(self, rank, epochs):
        """Why a worker cannot resume from its own files of this epoch; None if it can."""
        prefix = self._of(rank)
        others = [path for path in (f"{prefix}-{epochs:04d}.states", f"{prefix}-symbol.json") if os.path.exists(path)]
        return next(filter(None, map(damage, (f"{prefix}-{epochs:04d}.params", *others))), None)

    def find(self, epochs):
        """The prefix of the files to resume from: this worker's, or else rank 0's.

        Raises
        ------
        OptionError
            there are none of that epoch, or they are damaged.
        """
        for prefix in (self.own(), self.prefix):
            if os.path.exists(f"{prefix}-{epochs:04d}.params"):
                if prefix != self.own():
                    logging.warning(
                        "%s-%04d.params does not exist: using rank 0's, whose running statistics of batch norm are not this worker's",
                        self.own(),
                        epochs,
                    )
                wrong = self._wrong(self.rank if prefix == self.own() else 0, epochs)
                if wrong:
                    raise OptionError(f"--load-epoch {epochs}: {wrong}; resume from another epoch ({AUTO} finds one), or restore this file")
                return prefix
        there = self._epochs()
        others = f"there are those of epoch {', '.join(map(str, there))}" if there else "there is no other epoch"
        raise OptionError(f"--load-epoch {epochs}: there is no file {self.prefix}-{epochs:04d}.params; {others}")

    def newest(self):
        """The last epoch that all workers of its job have saved, and that can be read; None if there is none.

        Raises
        ------
        OptionError
            that job had fewer workers than this one, which therefore cannot go on from there, and would overwrite it; or there are several
            epochs, none of which can be read as a whole: a new training would overwrite what there is.
        """
        there = self._epochs()
        passed = []
        for epochs in reversed(there):
            saved_by = self._saved_by(epochs)
            wrong = next(filter(None, (self._wrong(rank, epochs) for rank in range(saved_by))), None)
            if wrong:
                passed.append(wrong)  # the job was killed at this epoch, or the disk was full
                continue
            if saved_by < self.workers:
                raise OptionError(
                    f"--load-epoch {AUTO}: {self.prefix}-{epochs:04d}.params was saved by {saved_by} worker(s), and this job has "
                    f"{self.workers}; start {saved_by} worker(s), or give --load-epoch {epochs}, and further workers take rank 0's files, "
                    "or begin anew with another --model-prefix"
                )
            if passed:
                logging.warning("--load-epoch %s: %s; training goes on after epoch %d", AUTO, "; ".join(passed[:3]), epochs)
            return epochs
        if len(there) > 1:  # a job that is killed in its first checkpoint leaves one
            raise OptionError(
                f"--load-epoch {AUTO}: of epoch {', '.join(map(str, there))} none is complete ({'; '.join(passed[:3])}). {SHARED}. If it "
                "is, restore the files, or begin anew with another --model-prefix"
            )
        return None

    def check(self, epochs):
        """OptionError if this worker cannot go on after the epoch that rank 0 has found (None: from the start)."""
        if epochs is not None:
            wrong, whence = self._wrong(self.rank, epochs), f"goes on after epoch {epochs}"
        else:
            own, whence = self._epochs(self.own()), "begins at the start"
            wrong = f"there are files of epoch {', '.join(map(str, own))}" if len(own) > 1 else None
        if wrong:
            raise OptionError(f"--load-epoch {AUTO}: rank 0 {whence}, but on this worker, of rank {self.rank}, {wrong}. {SHARED}")

    def _saved_by(self, epochs):
        """How many workers the job had that saved this epoch. Where that was not written down, it is how many have files of it."""
        path = f"{self.prefix}-{epochs:04d}.workers"
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.read(40).strip()
        except FileNotFoundError:
            folder, name = os.path.split(self.prefix)
            pattern = re.compile(re.escape(name) + rf"(-\d+)?-{epochs:04d}\.params")
            return sum(pattern.fullmatch(file) is not None for file in os.listdir(folder or "."))
        if not re.fullmatch(r"0*[1-9]\d{0,5}", text):
            raise OptionError(
                f"--load-epoch {AUTO}: {path} is damaged: it begins with {text!r}, and has to hold the number of workers, a whole number "
                "from 1 to 999999; write that there, or delete the files of this epoch"
            )
        return int(text)

    def _epochs(self, prefix=None):
        """The epochs for which there are files with this prefix (None: rank 0's), rising."""
        folder, name = os.path.split(prefix or self.prefix)
        pattern = re.compile(re.escape(name) + r"-(\d{4,})\.params")
        return sorted(int(match.group(1)) for match in map(pattern.fullmatch, os.listdir(folder or ".")) if match)


def resume(args, checkpoints, kv, key):
    """Find the epoch that ``--load-epoch auto`` stands for, and set ``load_epoch`` and ``first_epoch`` of ``args``.

    Rank 0 finds it, and the others hear of it by ``key`` of the store ``kv``; none can save another before all have begun to train.

    Raises
    ------
    OptionError
        no epoch can be told, or this worker cannot read its files of rank 0's.
    """
    if args.load_epoch != AUTO:
        return
    if checkpoints.rank == 0:
        try:
            args.load_epoch = checkpoints.newest()
        except OptionError:
            _told(kv, key, REFUSED)
            raise
        _told(kv, key, NONE if args.load_epoch is None else args.load_epoch)
    else:
        found = _told(kv, key, 0)
        if found == REFUSED:
            raise OptionError(f"--load-epoch {AUTO}: rank 0 cannot resume, and says why")
        args.load_epoch = None if found == NONE else found
        checkpoints.check(args.load_epoch)
    args.first_epoch = args.load_epoch or 0
    if args.load_epoch is None:
        logging.info("--load-epoch auto: no epoch was saved by all workers yet; training begins at the start")
    elif args.load_epoch >= args.num_epochs:
        logging.info("--load-epoch auto: all %d epochs are done; there is nothing left to train", args.num_epochs)


def _told(kv, key, number):
    """Rank 0's ``number``, on all workers. Initial values are rank 0's, and no traffic is scheduled for them. The type is one that
    gradients do not have: they share no message with it."""
    if kv.num_workers > 1:
        number = mx.nd.array([number], dtype="float64")
        kv.init(key, number)
        kv.pull(key, out=number)
        number = int(number.asscalar())
    return number


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
