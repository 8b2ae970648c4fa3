"""Whether 16 bits on the wire pay, for gradients that servers add up.

Fewer bytes travel, but a server converts them: it widens what each worker sends, adds it up in 32 bits, and rounds what it answers. MXNet
does this in one thread. So on a fast network the server's processor takes longer than its link, and gains nothing, or loses.
"""

# Seconds of a server for an element, on a processor of 2.6 GHz: for each worker's message, and once for its answer.
TAKES_FULL, ANSWERS_FULL = 2.5e-9, 2e-9  # in 32 bits
TAKES_HALF, ANSWERS_HALF = 3.2e-9, 4e-9  # in 16
# Of the time: what 16 bits save at the least. Two workers and a server that shared two cores had no time to spare at 4 Gbit/s: there
# 16 bits took as long as 32, or up to a tenth longer.
LEAST_GAIN = 0.4


def halves_pay(rate: float, workers: int) -> bool:
    """Whether gradients arrive sooner in 16 bits.

    Parameters
    ----------
    rate : bytes/s of each worker to each server while all workers send; 0 if not known, and then they do.
    workers : how many.

    >>> halves_pay(60e6, 2), halves_pay(240e6, 2), halves_pay(600e6, 2)
    (True, False, False)
    """
    if not rate:
        return True
    full = max(4 / rate, workers * TAKES_FULL + ANSWERS_FULL)
    half = max(2 / rate, workers * TAKES_HALF + ANSWERS_HALF)
    return half < (1 - LEAST_GAIN) * full
