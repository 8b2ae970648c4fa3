"""Runs a training script whose connections are slowed down, to see on one machine what scheduling gains on a network.

    prophet-mx launch -n 2 -s 1 -- python slow_link.py 500Mbit train_digits.py

No connection of the process sends more than this. If all processes of a job are started like this, links are slow in both directions.
The kernel paces a socket on request (Linux 4.13 and newer), without privileges. The script needs no change.
"""

import argparse
import ctypes
import os
import runpy
import socket
import sys
import threading

from prophet_mx.quantities import parse_rate

SO_MAX_PACING_RATE = 47  # Linux: limit on the bytes/s that a socket sends; not in Python's socket module
SEGMENT = 1448  # bytes, as on Ethernet. A segment of loopback is as large as a message, and the kernel waits after it, not within
PERIOD = 0.02  # seconds between two looks for new sockets: peers connect soon after a port is open

_libc = ctypes.CDLL(None)  # Python's own sockets would have to be made of copies of others' file descriptors, which others would see


def refusal():
    """Why this kernel does not slow down a connection, '' if it does."""
    try:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1_000_000)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def slow_down(rate):
    """From now on no connection that this process has, or accepts at a port that it listens on, sends more than ``rate`` bytes/s."""
    limit, segment = ctypes.c_uint(min(rate, 2**32 - 2)), ctypes.c_int(SEGMENT)  # 2**32 - 1 stands for no limit
    for name in map(int, os.listdir("/proc/self/fd")):  # both fail for anything but a socket
        _libc.setsockopt(name, socket.SOL_SOCKET, SO_MAX_PACING_RATE, ctypes.byref(limit), 4)
        _libc.setsockopt(name, socket.IPPROTO_TCP, socket.TCP_MAXSEG, ctypes.byref(segment), 4)  # of those accepted from now on


def keep_slow(rate):
    """Slow down existing and future connections, in a thread that ends with the main thread. It must be a thread: a server connects
    within ``import mxnet``, and stays there until the job ends."""
    main_thread = threading.main_thread()

    def run():
        while main_thread.is_alive():
            slow_down(rate)
            main_thread.join(PERIOD)

    threading.Thread(target=run, name="slow-link").start()


def bytes_per_second(text):
    try:
        return max(1, int(parse_rate(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a rate such as 500Mbit") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rate", type=bytes_per_second, help="what each connection sends at most, such as 500Mbit")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    args = parser.parse_args()
    why = refusal()
    if why:
        print(f"slow_link.py: the kernel refuses to slow connections down ({why}): they stay as they are", file=sys.stderr)
    else:
        keep_slow(args.rate)
    sys.argv[:] = [args.script, *args.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    runpy.run_path(args.script, run_name="__main__")


if __name__ == "__main__":
    main()
