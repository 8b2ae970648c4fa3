"""Exit codes that mean the same for a command, for a launcher and for a worker."""

EXIT_USAGE = 2  # a wrong argument or setting
EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h: a worker got no answer for PROPHET_STALL_ABORT seconds; another start may work
EXIT_TIMEOUT = 124  # the job had not ended in time; as timeout(1)
