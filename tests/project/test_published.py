"""The numbers in README and docs are those of benchmarks/results, whose age and commands are told right."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
from importlib import import_module

import pytest

from benchmarks import publish, questions, status
from benchmarks.comparison import results
from benchmarks.comparison.cells import Cell
from benchmarks.comparison.metadata import fingerprint
from benchmarks.comparison.results import load, write
from benchmarks.comparison.rings import RingCell
from benchmarks.devices import DeviceCell
from benchmarks.pictures import speedups
from benchmarks.questions import QUESTIONS
from support.paths import ROOT
from support.results import CELL, job, jobs, published
from support.results import about as described

PLACE = "<!-- result: {} -->\n<!-- end of result -->\n"
ROWS = [*jobs("prophet", 160, 161, 162), *jobs("p3", 240, 245, 230)]


# --- this checkout ---


def test_the_pages_have_the_numbers_of_the_results():
    found = publish.differences()
    assert not found, "run python -m benchmarks.publish\n" + "\n".join(map(str, found))


def test_the_pictures_have_the_numbers_of_the_results():
    shown = (ROOT / "docs" / "images" / "iteration.svg").read_text(encoding="utf-8")
    now = speedups.measured_words(Cell.parse(speedups.CELL), (speedups.PLAIN, "prophet"))
    assert now in shown, f"run make plots: {now}"
    drawn = (ROOT / "docs" / "images" / "bandwidth.svg").read_text(encoding="utf-8")
    published_now = bool(speedups.measured(Cell.parse(speedups.JOB)))
    assert ("Nothing measured is published yet" in drawn) is not published_now, "run make plots"


def test_published_results_are_of_questions_and_complete():
    for folder in (ROOT / "benchmarks" / "results").glob("*/"):
        if not folder.is_dir():  # before Python 3.11 the pattern takes files as well
            continue
        assert folder.name in QUESTIONS, f"{folder}: no question"
        assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "metadata.json", "table.md"]
        about = load(folder.name).about
        assert re.fullmatch("[0-9a-f]{40}", about["commit"]) and {"dirty", "date", "machine", "command"} <= set(about)


SPEED = re.compile(r"\d\.\d+ times|\d+(\.\d+)?% (faster|slower)|\d\.\d\d of (the|its own) bound|\d+ ms \(\d\.\d\d\)")


def test_no_page_has_a_speed_of_its_own():
    """Beside the places that are filled from results, and what commands print, pages have no numbers of what is faster than what."""
    for path in publish.pages(ROOT):
        rest = re.sub(r"^```.*?^```", "", publish.PLACE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE | re.DOTALL)
        found = [line for line in rest.splitlines() if SPEED.search(line)]
        assert not found, f"{path.name}: " + "\n".join(found)


# Commands whose cells are of another kind.
CELLS = {"benchmarks.collectives": lambda text: RingCell.parse(text, "device"), "benchmarks.devices": DeviceCell.parse}


class ParsedError(Exception):
    """What a command line was parsed to: ends a command before it does anything."""


def accepted(command, monkeypatch):
    """A failing test if ``python -m benchmarks.NAME ...`` is not accepted. Nothing is run."""
    words = shlex.split(command)
    module = import_module(words[2] + (".__main__" if words[2] == "benchmarks.testbed" else ""))
    if words[3:] in ([], ["--help"]):  # the command is only named
        assert callable(module.main)
        return
    parse_known = argparse.ArgumentParser.parse_known_args

    def parse_only(self, args=None, namespace=None):
        options, rest = parse_known(self, args, namespace)
        raise ParsedError(options, rest)

    with monkeypatch.context() as patch, pytest.raises((ParsedError, SystemExit)) as ended:
        # Parsers of subcommands are asked by parse_known_args.
        patch.setattr(argparse.ArgumentParser, "parse_known_args" if words[2] == "benchmarks.questions" else "parse_args", parse_only)
        module.main(words[3:])
    assert ended.type is ParsedError, f"{command}: not accepted"
    options, rest = ended.value.args
    assert not rest or words[2] == "benchmarks.questions", f"{command}: {rest} is not accepted"
    cells = getattr(options, "cell", [])
    for cell in [cells] if isinstance(cells, str) else cells or []:
        CELLS.get(words[2], Cell.parse)(cell)


def commands_in(text):
    """Command lines of the benchmarks, in code blocks and within lines."""
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for block in blocks:
        text = text.replace(block, "")
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    return [line.split(" -- ")[0].split("  ")[0] for line in lines if line.startswith("python -m benchmarks.")]


PAGES = [*publish.pages(ROOT), ROOT / "CONTRIBUTING.md"]
IN_PAGES = sorted({command for page in PAGES for command in commands_in(page.read_text(encoding="utf-8"))})
IN_RESULTS = [json.loads(path.read_text())["command"] for path in sorted((ROOT / "benchmarks" / "results").glob("*/metadata.json"))]
ASKED = [shlex.join(["python", "-m", *question.command("--publish", question.name)]) for question in QUESTIONS.values()]


@pytest.mark.parametrize("command", [*IN_PAGES, *IN_RESULTS, *ASKED])
def test_commands_in_pages_results_and_questions_are_accepted(command, monkeypatch):
    accepted(command, monkeypatch)


@pytest.mark.parametrize("wrong", ["benchmarks.run --cell resnet50_v1 --undisturbed 3", "benchmarks.sizes --cels workers=2"])
def test_a_command_that_is_no_longer_accepted_is_found(wrong, monkeypatch):
    with pytest.raises(AssertionError, match="is not accepted|not accepted"):
        accepted(f"python -m {wrong}", monkeypatch)


def test_targets_of_make_in_pages_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`make ([a-zA-Z-]+)", page.read_text(encoding="utf-8")):
            exists = re.search(rf"^{target}\b.*:", makefile, re.MULTILINE) or target.partition("bench-")[2] in {*QUESTIONS, "QUESTION"}
            assert exists, f"{page.name}: make {target}"


# --- made-up checkouts, in which something is wrong ---


@pytest.fixture
def checkout(tmp_path):
    """This checkout's pages with a table of a published result."""
    for page in ("README.md", "docs"):
        (shutil.copytree if (ROOT / page).is_dir() else shutil.copy)(ROOT / page, tmp_path / page)
    (tmp_path / "docs" / "some.md").write_text(f"# Some\n\n{PLACE.format('long compact claims')}")
    for question in ("headline", "long"):
        published(tmp_path, question, ROWS, methods=["p3", "prophet"])
    publish.fill(tmp_path)
    return tmp_path


def test_places_are_filled_from_the_result_with_what_it_is_of(checkout):
    text = (checkout / "docs" / "some.md").read_text()
    assert "| ResNet-50, 150 ms, rho 1 | 150 | 240 (1.60) | 161 (1.07) |" in text and "1.50 times as fast as `p3`" in text
    assert (
        "Commit 012345678, 2026-11-23 05:00 UTC; two cores." in text
        and "`make bench-long`" in text
        and "ResNet-50 from 102 to 9 MB" in text
    )
    assert publish.differences(checkout) == [] and publish.fill(checkout) == []


@pytest.mark.parametrize("page, right, wrong", [("docs/some.md", "161 (1.07)", "158 (1.05)"), ("docs/some.md", "1.50 times", "1.60 times")])
def test_a_wrong_number_in_a_page_is_found_and_put_right(checkout, page, right, wrong):
    text = (checkout / page).read_text()
    (checkout / page).write_text(text.replace(right, wrong))
    [found] = publish.differences(checkout)
    assert found.page == page and wrong in str(found) and right in str(found)
    assert publish.fill(checkout) == [page] and (checkout / page).read_text() == text


def test_a_wrong_number_in_a_copy_of_the_readme_is_found(checkout):
    readme = checkout / "README.md"
    right = readme.read_text()
    assert "| 161 (1.07) |" in right
    readme.write_text(right.replace("| 161 (1.07) |", "| 151 (1.01) |"))
    [found] = publish.differences(checkout)
    assert found.page == "README.md" and "| 151 (1.01) |" in str(found) and "| 161 (1.07) |" in str(found)
    assert publish.main(["--check"]) == 0  # of this checkout, which is right


def test_a_table_that_is_not_that_of_its_data_is_found(checkout):
    table = checkout / "benchmarks" / "results" / "long" / "table.md"
    table.write_text(table.read_text().replace("161.0 (160.0 to 162.0)", "151.0 (150.0 to 152.0)"))
    [found] = publish.differences(checkout)
    assert found.page == "benchmarks/results/long/table.md" and "151.0" in str(found)


def test_a_table_of_training_is_that_of_its_data_and_stands_in_pages_with_its_sentences(checkout):
    cell = "resnet18_v1,workers=2,servers=1,rate=1.5Gbit"
    more = {"cell": cell, "bound_ms": None, "model_megabytes": None, "images": 64, "accuracy": 0.8, "weights": "aa"}
    files = published(checkout, "training", [*jobs("pushpull", 1000, **more), *jobs("prophet", 800, **more)], cells=[cell])
    (checkout / "docs" / "some.md").write_text(PLACE.format("training table claims"))
    publish.fill(checkout)
    text = (checkout / "docs" / "some.md").read_text()
    assert "| `prophet` | 80.0 | 1.25 | 80% | the same bits |" in text and "1.25 times as fast as plain `dist_sync` (1 cell)" in text
    assert publish.differences(checkout) == []
    files.data.write_text(files.data.read_text().replace(",0.8,aa", ",0.8,bb", 1))
    assert "**others**" in str(publish.differences(checkout)[0])


def test_methods_and_cells_that_a_question_has_and_its_result_lacks_are_shown(checkout):
    text = (checkout / "docs" / "some.md").read_text()
    assert "credit" in text and text.count("**not measured**") > 10  # the result has two methods and one cell of the question
    for cell in ("VGG-16, 1000 ms, rho 1", "ResNet-152, 1000 ms, rho 1"):
        assert f"| {cell} |" in text


def test_a_time_under_the_bound_in_a_result_stops_its_pages(checkout):
    data = checkout / "benchmarks" / "results" / "long" / "data.csv"
    data.write_text(data.read_text().replace(",240.0,", ",147.0,").replace(",245.0,", ",147.0,"))
    with pytest.raises(publish.ProphetError, match=r"p3 took 0\.980 of the bound"):
        publish.fill(checkout)


def test_what_is_not_measured_says_how_to_measure_it(checkout):
    page = checkout / "docs" / "some.md"
    page.write_text(PLACE.format("tuned compact"))
    shutil.rmtree(checkout / "benchmarks" / "results")
    publish.fill(checkout)
    assert "Not measured with this version: `python -m benchmarks.questions tuned --publish`." in page.read_text()


@pytest.mark.parametrize("what", ["lang compact", "long graph", "long"])
def test_a_place_for_what_there_is_not_is_an_error(checkout, what):
    (checkout / "docs" / "some.md").write_text(PLACE.format(what))
    with pytest.raises(publish.ConfigError, match=f"{what!r} is not allowed"):
        publish.differences(checkout)


def test_mxnet_and_pytorch_stand_beside_each_other(checkout):
    cell, ring = CELL.replace("servers=1", "servers=2"), CELL.replace("workers=2,servers=1", "ranks=2") + ",ready=steps"
    published(checkout, "frameworks-mxnet", [job("pushpull", 300, cell=cell), job("prophet", 180, cell=cell)])
    (checkout / "docs" / "some.md").write_text(PLACE.format("frameworks-mxnet beside"))
    publish.fill(checkout)
    head = "| ResNet-50, 150 ms, rho 1 | 300 (2.00) | not measured | 180 (1.20) |"
    assert f"{head} not measured | not measured | not measured |" in (checkout / "docs" / "some.md").read_text()
    rows = [job(name, time, cell=ring)._replace(kind="device") for name, time in (("ddp", 310), ("ddp-2MB", 200), ("scheduled", 165))]
    published(checkout, "frameworks-pytorch", rows)
    publish.fill(checkout)
    page = (checkout / "docs" / "some.md").read_text()
    assert f"{head} 310 (2.07) | 200 (1.33) | 165 (1.10) |" in page
    assert "gradients are resized to suit the links: ResNet-50" in page
    assert "results/frameworks-mxnet/table.md" in page and "results/frameworks-pytorch/table.md" in page


# --- histories ---


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def history(tmp_path):
    """A repository, and commit(file): a change of it."""
    if not shutil.which("git"):
        pytest.skip("there is no git (Debian: apt-get install git)")
    folder = tmp_path / "history"
    folder.mkdir()
    git(folder, "init", "-q")

    def commit(name):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "a") as file:
            file.write("a line\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"Change of {name}")
        return git(folder, "rev-parse", "HEAD")

    return folder, commit


def test_a_result_is_stale_after_a_change_of_what_it_depends_on(history):
    folder, commit = history
    about = {"commit": commit("_ext/scheduler.pyx"), "dirty": False}
    for name in (
        "README.md",
        "prophet_mx/cli/main.py",
        "prophet_mx/torch/plan.py",
        "benchmarks/results/long/data.csv",
        "benchmarks/soak.py",
    ):
        commit(name)
    assert status.status(QUESTIONS["long"], about, folder).note == ""
    assert "prophet_mx/torch/plan.py" in status.status(QUESTIONS["pytorch"], about, folder).note
    for name in ("_ext/scheduler.pyx", "prophet_mx/mxnet/kvstore.py", "benchmarks/testbed/network.py", "benchmarks/run.py"):
        commit(name)
        assert f"Change of {name}" in status.status(QUESTIONS["long"], about, folder).note
    assert len(status.status(QUESTIONS["long"], about, folder).changes) == 4
    assert "changes that are in no commit" in status.status(QUESTIONS["long"], {**about, "dirty": True}, folder).note


def test_where_the_history_is_not_there_it_says_that_it_cannot_tell(history, tmp_path):
    folder, commit = history
    about = {"commit": commit("_ext/scheduler.pyx"), "dirty": False}
    commit("_ext/scheduler.pyx")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    git(tmp_path, "clone", "-q", f"file://{folder}", "plain")
    (tmp_path / "none").mkdir()
    notes = {name: status.status(QUESTIONS["long"], about, tmp_path / name) for name in ("plain", "shallow", "none")}
    assert len(notes["plain"].changes) == 1 and not notes["plain"].unknown
    assert "is not known: this clone is shallow and lacks commit" in notes["shallow"].note
    assert "is not known: this is no clone" in notes["none"].note
    elsewhere = {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False}
    assert "is not in this history" in status.status(QUESTIONS["long"], elsewhere, tmp_path / "plain").note


def test_where_its_commit_is_gone_the_files_fingerprint_tells_whether_they_are_the_same(history):
    folder, commit = history
    commit("_ext/scheduler.pyx")
    commit("prophet_mx/profiling/profile.py")
    long = QUESTIONS["long"]
    about = {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "fingerprint": fingerprint(long.alters, folder)}
    commit("README.md")
    commit("benchmarks/comparison/tables.py")
    found = status.status(long, about, folder)
    assert found.note == "Commit 012345678 is not in this history, but the files that could alter this result are still the same."
    commit("prophet_mx/profiling/profile.py")
    assert "is not known: commit 012345678 is not in this history" in status.status(long, about, folder).note


def test_a_published_result_has_the_fingerprint_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    write(results.Files.published("long"), ("a",), [(1,)], "| a |", described())
    assert load("long").about["fingerprint"] == fingerprint(QUESTIONS["long"].alters)


def test_generated_pages_say_beside_the_table_that_it_is_stale(checkout):
    page = (checkout / "docs" / "some.md").read_text()
    shown = publish.with_notes(page, {"long": "2 later commits could alter this result."})
    assert shown.split("<!-- end of result -->")[1].strip() == "**2 later commits could alter this result.**"
    assert publish.with_notes(page, {"long": "", "short": "x"}) == page


def test_the_command_lists_what_is_stale_and_what_is_missing(checkout, capsys, monkeypatch):
    monkeypatch.setattr(status, "RESULTS", checkout / "benchmarks" / "results")
    assert status.main([]) == 0
    out = capsys.readouterr().out
    assert "long, commit 012345678: Whether the code has changed since is not known" in out and "not measured: short" in out


# --- questions ---


def test_the_list_has_every_question_and_its_command(capsys):
    assert questions.main(["--list"]) == 0
    out = capsys.readouterr().out
    for question in QUESTIONS.values():
        assert f"{question.name}: {question.asks}" in out and shlex.join(question.command()) in out


def test_a_question_runs_its_command_with_what_is_added(monkeypatch, capfd):
    ran = []
    monkeypatch.setattr(questions.os, "execv", lambda program, words: ran.append(words[1:]))
    questions.main(["copies", "--repeats", "5"])
    questions.main(["copies", "--publish"])
    assert ran == [["-m", *QUESTIONS["copies"].command("--repeats", "5")], ["-m", *QUESTIONS["copies"].command("--publish", "copies")]]
    with pytest.raises(SystemExit):
        questions.main([])
