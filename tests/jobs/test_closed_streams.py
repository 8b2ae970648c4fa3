"""Commands whose standard streams a shell has closed, as with '>&-', or that cannot show a character."""

import sys

import pytest

from support.commands import run

HELLO = '[ "$DMLC_ROLE" = worker ] || exec sleep 100; echo out; echo err >&2; exit 3'


def shell(line, *words, **options):
    """Run a line of a shell, in which "$@" is ``prophet-mx`` with the words."""
    return run("/bin/sh", "-c", line, "sh", sys.executable, "-m", "prophet_mx", *words, **options)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_with_closed_streams_does_its_work_and_says_nothing_there(closed, tmp_path):
    logs = tmp_path / "logs"
    done = shell(f'"$@" {closed}', "launch", "-n", "1", "--timeout", "30", "--log-dir", logs, "--", "sh", "-c", HELLO)
    assert done.returncode == 3, done.stderr  # the job's own code
    assert ("[worker 0] out" in done.stdout) == (closed == "2>&-") and done.stderr == ""
    # What is opened later does not take the number of a closed stream: the files have the lines of their processes alone.
    assert sorted((logs / "worker-0.log").read_text().splitlines()[:2]) == ["err", "out"]
    wrong = shell(f'"$@" {closed}', "launch", "--", "no-such-program")
    assert wrong.returncode == 2 and wrong.stdout == ""  # an error is never part of the output
    assert ("no-such-program" in wrong.stderr) == (closed == ">&-") and "Traceback" not in wrong.stderr


def test_output_that_cannot_be_written_is_one_line_of_error():
    done = shell('"$@" >/dev/full', "launch", "-n", "1", "--dry-run", "--", "true")
    assert done.returncode == 1
    assert done.stderr == "prophet-mx launch: error: the output cannot be written: No space left on device\n"


def test_a_character_that_the_output_cannot_show_is_replaced(tmp_path):
    """A file's name can have bytes that are not UTF-8; Python has a lone surrogate for each."""
    done = shell('"$@" "$(printf \'a\\377b\')"', "launch", "-n", "1", "--dry-run", "--", "true", env={"PYTHONIOENCODING": "utf-8:strict"})
    assert (done.returncode, done.stderr) == (0, "") and "a?b" in done.stdout
