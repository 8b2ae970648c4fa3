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
from benchmarks.pictures import recordings, speedups
from benchmarks.questions import QUESTIONS
from prophet_mx.simulation.predict import MARGIN, WORST
from support.paths import ROOT
from support.results import CELL, job, jobs, published
from support.results import about as described

PLACE = "<!-- result: {} -->\n<!-- end of result -->\n"
ROWS = [*jobs("prophet", 160, 161, 162), *jobs("p3", 240, 245, 230)]


# --- this checkout ---


def test_the_pages_have_the_numbers_of_the_results():
    found = publish.differences()
    assert not found, "run python -m benchmarks.publish\n" + "\n".join(map(str, found))


def test_the_page_of_measurements_is_one_that_is_read_to_its_end():
    assert len((ROOT / "docs" / "measurements.md").read_text(encoding="utf-8").splitlines()) <= 250


def test_the_pictures_have_the_numbers_of_the_results():
    shown = (ROOT / "docs" / "images" / "iteration.svg").read_text(encoding="utf-8")
    recorded = recordings.load_recording().iterations
    for method, name in speedups.NAMES.items():
        now = f"{name}: {recorded[method].seconds * 1e3:.0f} ms per iteration"
        assert now in shown, f"run make plots: {now}"
    drawn = (ROOT / "docs" / "images" / "models.svg").read_text(encoding="utf-8")
    found = speedups.bars()
    assert found or "Nothing measured is published yet" in drawn, "run make plots"
    for bars in found:
        assert f">{bars.times['prophet']:.0f}<" in drawn and f">{bars.model}<" in drawn, f"run make plots: {bars.model}"


def test_published_results_are_of_questions_and_complete():
    for folder in (ROOT / "benchmarks" / "results").glob("*/"):
        if not folder.is_dir():  # before Python 3.11 the pattern takes files as well
            continue
        assert folder.name in QUESTIONS, f"{folder}: no question"
        assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "metadata.json", "table.md"]
        about = load(folder.name).about
        assert re.fullmatch("[0-9a-f]{40}", about["commit"]) and {"dirty", "date", "machine", "command"} <= set(about)


def test_the_help_of_predict_says_how_far_off_predictions_were():
    """They are constants of prophet_mx.simulation.predict: change these if a new result contradicts them."""
    table = (ROOT / "benchmarks" / "results" / "simulator" / "table.md").read_text(encoding="utf-8")
    errors = [abs(float(found)) / 100 for found in re.findall(r"\| ([+-][\d.]+)% \|$", table, re.MULTILINE)]
    assert len(errors) > 50 and max(errors) <= WORST and sum(error < MARGIN for error in errors) > len(errors) / 2


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
# Results whose cells were measured one by one, by an option that is gone, are replaced as a whole by the next "make results".
METADATA = [json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks" / "results").glob("*/metadata.json"))]
IN_RESULTS = [found["command"] for found in METADATA if "measured" not in found]
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
    (tmp_path / "docs" / "some.md").write_text(f"# Some\n\n{PLACE.format('models compact claims')}")
    for question in ("models", "rho"):
        published(tmp_path, question, ROWS, methods=["p3", "prophet"])
    publish.fill(tmp_path)
    return tmp_path


def test_places_are_filled_from_the_result_with_what_it_is_of(checkout):
    text = (checkout / "docs" / "some.md").read_text()
    assert "| ResNet-50, 150 ms, rho 1 | 150 | 240 (1.60) | 161 (1.07) |" in text and "1.50 times as fast as `P3`" in text
    assert (
        "Commit 012345678, 2026-11-23 05:00 UTC; two cores." in text
        and "`make bench-models`" in text
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
    assert "| 240 | 161 | 150 |" in right
    readme.write_text(right.replace("| 240 | 161 | 150 |", "| 240 | 151 | 150 |"))
    [found] = publish.differences(checkout)
    assert found.page == "README.md" and "| 240 | 151 | 150 |" in str(found) and "| 240 | 161 | 150 |" in str(found)
    assert publish.main(["--check"]) == 0  # of this checkout, which is right


def test_a_table_that_is_not_that_of_its_data_is_found(checkout):
    table = checkout / "benchmarks" / "results" / "models" / "table.md"
    table.write_text(table.read_text().replace("161.0 (160.0 to 162.0)", "151.0 (150.0 to 152.0)"))
    [found] = publish.differences(checkout)
    assert found.page == "benchmarks/results/models/table.md" and "151.0" in str(found)


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
    cell = f"{CELL.replace(',rate=1Gbit', '')},update=servers,keys=names,rate=1Gbit"
    published(checkout, "models", [row._replace(cell=cell) for row in jobs("prophet", 160)], cells=[cell])
    publish.fill(checkout)
    text = (checkout / "docs" / "some.md").read_text()
    assert "ByteScheduler" in text and text.count("**not measured**") > 6  # the result has a method and a cell of the question
    for cell in ("VGG-16, 150 ms, rho 1", "ResNet-152, 150 ms, rho 1"):
        assert f"| {cell} |" in text


def test_a_time_under_the_bound_in_a_result_stops_its_pages(checkout):
    data = checkout / "benchmarks" / "results" / "models" / "data.csv"
    data.write_text(data.read_text().replace(",240.0,", ",147.0,").replace(",245.0,", ",147.0,"))
    with pytest.raises(publish.ProphetError, match=r"p3 took 0\.980 of the bound"):
        publish.fill(checkout)


def test_what_is_not_measured_says_how_to_measure_it(checkout):
    page = checkout / "docs" / "some.md"
    page.write_text(PLACE.format("parts compact"))
    shutil.rmtree(checkout / "benchmarks" / "results")
    publish.fill(checkout)
    assert "Not measured with this version: `python -m benchmarks.questions parts --publish`." in page.read_text()


@pytest.mark.parametrize("what", ["modals compact", "models graph", "models"])
def test_a_place_for_what_there_is_not_is_an_error(checkout, what):
    (checkout / "docs" / "some.md").write_text(PLACE.format(what))
    with pytest.raises(publish.ConfigError, match=f"{what!r} is not allowed"):
        publish.differences(checkout)


def test_mxnet_and_pytorch_stand_beside_each_other(checkout):
    cell, ring = CELL.replace("servers=1", "servers=2"), CELL.replace("workers=2,servers=1", "ranks=2") + ",ready=steps"
    (checkout / "docs" / "some.md").write_text(PLACE.format("conditions beside"))
    published(
        checkout, "conditions", [job("pushpull", 300, cell=cell), job("prophet", 180, cell=cell), *jobs("prophet", 160)], cells=[cell]
    )
    publish.fill(checkout)
    assert "Not measured in the same cells yet" in (checkout / "docs" / "some.md").read_text()
    rows = [job(name, time, cell=ring)._replace(kind="device") for name, time in (("ddp", 310), ("ddp-4MB", 200), ("scheduled", 165))]
    published(checkout, "pytorch", rows, cells=[ring])
    publish.fill(checkout)
    page = (checkout / "docs" / "some.md").read_text()
    assert "| ResNet-50, 150 ms, rho 1 | 300 (2.00) | not measured | 180 (1.20) | 310 (2.07) | 200 (1.33) | 165 (1.10) |" in page
    assert "gradients are resized to suit the links: ResNet-50" in page
    assert "results/conditions/table.md" in page and "results/pytorch/table.md" in page


def test_a_result_of_an_older_question_says_so_in_a_line(checkout):
    assert "ByteScheduler's method with the best settings is not measured yet." in (checkout / "README.md").read_text()
    assert "is of an older question" in (checkout / "docs" / "some.md").read_text()
    cell = str(Cell.parse(QUESTIONS["models"].arguments[1]))
    published(checkout, "models", [row._replace(cell=cell) for row in ROWS], cells=[cell])
    publish.fill(checkout)
    assert "older question" not in (checkout / "docs" / "some.md").read_text()


def test_a_reader_is_told_how_much_faster_a_job_gets_and_what_that_costs(checkout):
    asked = str(Cell.parse(QUESTIONS["models"].arguments[1]))
    tuned = "credit:PROPHET_UNIT=64000:PROPHET_LEAD=128000"
    times = {"pushpull": (220, 224, 240), "p3-push+pull": (200, 200, 200), "credit": (240, 240, 240), tuned: (158, 160, 161)}
    rows = [row for name, each in times.items() for row in jobs(name, *each, cell=asked, start_s=4.5)]
    rows += jobs("prophet", 160, 160, 160, cell=asked, server_cpu_percent=50.0, start_s=5.5)
    published(checkout, "models", rows, cells=[asked], best={asked: [tuned]})
    (checkout / "docs" / "some.md").write_text(PLACE.format("models gains words costs"))
    publish.fill(checkout)
    page = (checkout / "docs" / "some.md").read_text()
    assert "| ms per iteration | plain dist_sync | P3 | ByteScheduler | prophet | ByteScheduler, tuned | limit |" in page
    assert "| ResNet-50, 150 ms, rho 1 | 224 | 200 | 240 | 160 | 160 | 150 | 40% (38% to 50%) |" in page
    assert "training with prophet_mx is 40% faster than with plain MXNet. It is 25% faster than with MXNet's own P3." in page
    assert "It is as fast as with ByteScheduler's method with the best settings." in page
    assert "No order of sending can save more than another 6% of an iteration." in page
    assert "| prophet | 32 | 80 | 300 | 5.5 |" in page and "| plain dist_sync | 45 | not measured | 300 | 4.5 |" in page


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
        "benchmarks/results/models/data.csv",
        "benchmarks/soak.py",
    ):
        commit(name)
    assert status.status(QUESTIONS["models"], about, folder).note == ""
    assert "prophet_mx/torch/plan.py" in status.status(QUESTIONS["pytorch"], about, folder).note
    for name in ("_ext/scheduler.pyx", "prophet_mx/mxnet/kvstore.py", "benchmarks/testbed/network.py", "benchmarks/run.py"):
        commit(name)
        assert f"Change of {name}" in status.status(QUESTIONS["models"], about, folder).note
    assert len(status.status(QUESTIONS["models"], about, folder).changes) == 4
    assert "changes that are in no commit" in status.status(QUESTIONS["models"], {**about, "dirty": True}, folder).note


def test_where_the_history_is_not_there_it_says_that_it_cannot_tell(history, tmp_path):
    folder, commit = history
    about = {"commit": commit("_ext/scheduler.pyx"), "dirty": False}
    commit("_ext/scheduler.pyx")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    git(tmp_path, "clone", "-q", f"file://{folder}", "plain")
    (tmp_path / "none").mkdir()
    notes = {name: status.status(QUESTIONS["models"], about, tmp_path / name) for name in ("plain", "shallow", "none")}
    assert len(notes["plain"].changes) == 1 and not notes["plain"].unknown
    assert "is not known: this clone is shallow and lacks commit" in notes["shallow"].note
    assert "is not known: this is no clone" in notes["none"].note
    elsewhere = {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False}
    assert "is not in this history" in status.status(QUESTIONS["models"], elsewhere, tmp_path / "plain").note


def test_where_its_commit_is_gone_the_files_fingerprint_tells_whether_they_are_the_same(history):
    folder, commit = history
    commit("_ext/scheduler.pyx")
    commit("prophet_mx/profiling/profile.py")
    models = QUESTIONS["models"]
    about = {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "fingerprint": fingerprint(models.alters, folder)}
    commit("README.md")
    commit("benchmarks/comparison/tables.py")
    found = status.status(models, about, folder)
    assert found.note == "Commit 012345678 is not in this history, but the files that could alter this result are still the same."
    commit("prophet_mx/profiling/profile.py")
    assert "is not known: commit 012345678 is not in this history" in status.status(models, about, folder).note


def test_a_published_result_has_the_fingerprint_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    write(results.Files.published("models"), ("a",), [(1,)], "| a |", described())
    assert load("models").about["fingerprint"] == fingerprint(QUESTIONS["models"].alters)


def test_generated_pages_say_beside_the_table_that_it_is_stale(checkout):
    page = (checkout / "docs" / "some.md").read_text()
    shown = publish.with_notes(page, {"models": "2 later commits could alter this result."})
    assert shown.split("<!-- end of result -->")[1].strip() == "**2 later commits could alter this result.**"
    assert publish.with_notes(page, {"models": "", "rho": "x"}) == page


def test_the_command_lists_what_is_stale_and_what_is_missing(checkout, capsys, monkeypatch):
    monkeypatch.setattr(status, "RESULTS", checkout / "benchmarks" / "results")
    assert status.main([]) == 0
    out = capsys.readouterr().out
    assert "models, commit 012345678: Whether the code has changed since is not known" in out and "not measured: devices" in out


# --- questions ---


def test_the_list_has_every_question_and_its_command(capsys):
    assert questions.main(["--list"]) == 0
    out = capsys.readouterr().out
    for question in QUESTIONS.values():
        assert f"{question.name}: {question.asks}" in out and shlex.join(question.command()) in out


def test_a_question_runs_its_command_with_what_is_added(monkeypatch, capfd):
    ran = []
    monkeypatch.setattr(questions.os, "execv", lambda program, words: ran.append(words[1:]))
    questions.main(["rho", "--repeats", "5"])
    questions.main(["rho", "--publish"])
    assert ran == [["-m", *QUESTIONS["rho"].command("--repeats", "5")], ["-m", *QUESTIONS["rho"].command("--publish", "rho")]]
    with pytest.raises(SystemExit):
        questions.main([])
