"""A model of MXNet's dist_sync store: servers in memory, and what the wrapper asks of a store, for workers that are threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PATIENCE = 10  # seconds after which a worker that waits for the others gives up


class Servers:
    """What all servers hold together, by number. Without an optimizer: what is pushed is summed up."""

    def __init__(self, workers):
        self.workers = workers
        self.barrier = threading.Barrier(workers, timeout=PATIENCE)
        self.changed = threading.Condition()
        self.ended = False
        self.values = {}
        self.pushed = {}  # number -> what each worker has pushed and nobody has answered
        self.rounds = {}  # number -> how often all have pushed it

    def end(self):
        """One worker has ended with an error, and nobody waits for it."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.barrier.abort()

    def push(self, number, rank, value):
        with self.changed:
            waiting = self.pushed.setdefault(number, {})
            assert number in self.values and value.size == self.values[number].size and rank not in waiting
            waiting[rank] = value
            if len(waiting) == self.workers:
                self.values[number] = sum(waiting.values())
                self.rounds[number] = self.rounds.get(number, 0) + 1
                waiting.clear()
                self.changed.notify_all()


class Store:
    """One worker's. A text key gets the next number of this worker, an int key is its own number."""

    def __init__(self, servers, rank):
        self.servers, self.rank, self.num_workers = servers, rank, servers.workers
        self.numbers = {}
        self.sent = {}  # number -> how often this worker has pushed it
        self._barrier = servers.barrier.wait

    def init(self, keys, values):
        keys, values = self._lists(keys, values)
        for key, value in zip(keys, values):
            assert key not in self.numbers, f"{key} is already initialised"
            self.numbers[key] = len(self.numbers) if isinstance(key, str) else key
            if self.rank == 0:
                self.servers.values[self.numbers[key]] = value.asnumpy().ravel()
        self._barrier()

    def broadcast(self, key, value, out):
        self.init(key, value)
        self.pull(key, out)

    def push(self, keys, values):
        for key, value in zip(*self._lists(keys, values)):
            number = self.numbers[key]
            self.sent[number] = self.sent.get(number, 0) + 1
            self.servers.push(number, self.rank, value.asnumpy().ravel())

    def pull(self, keys, outs):
        for key, out in zip(*self._lists(keys, outs)):
            number, servers = self.numbers[key], self.servers
            with servers.changed:
                servers.changed.wait_for(lambda: servers.ended or servers.rounds.get(number, 0) >= self.sent.get(number, 0), PATIENCE)
                assert servers.rounds.get(number, 0) >= self.sent.get(number, 0), "the others do not come"
                assert number in servers.values, f"number {number} was pulled before it was made, which ends the servers"
                value = servers.values[number]
            assert value.size == out.size, f"{key}: {value.size} elements are there, {out.size} were asked for"
            out[:] = np.reshape(value, out.shape)

    def pushpull(self, keys, values, outs):
        self.push(keys, values)
        self.pull(keys, outs)

    def leave_alone(self):
        pass

    def set_optimizer(self, optimizer):
        raise AssertionError("these servers have none")

    @staticmethod
    def _lists(*arguments):
        return arguments if isinstance(arguments[0], list) else [[argument] for argument in arguments]


def run_workers(count, work):
    """What ``work`` returns or raises on each of ``count`` workers, given its store."""
    servers = Servers(count)

    def caught(rank):
        try:
            return work(Store(servers, rank))
        except Exception as error:
            servers.end()
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(caught, range(count)))
