"""The documentation builds without a warning, names what there is, and every command explains itself."""

import dataclasses
import html
import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

import prophet_mx
from prophet_mx import Config, _core
from prophet_mx.cli import main as cli
from prophet_mx.planning.placement import BIGARRAY_BOUND
from prophet_mx.runtime import EXIT_STALLED, EXIT_TIMEOUT
from prophet_mx.sizes import LARGEST_UNIT, UNIT_SHARE
from support.cluster import package_env
from support.commands import cli as run_cli
from support.commands import python
from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_PARSERS = next(action.choices for action in cli.parser()._actions if isinstance(action.choices, dict))
COMMANDS = sorted(COMMAND_PARSERS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    python("-m", "mkdocs", "build", "--strict", "-f", ROOT / "mkdocs.yml", "-d", folder, timeout=120, expect=0)
    return folder


def text_of(site, page):
    """What a reader sees of a page."""
    body = (site / page / "index.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", body[body.index('role="main"') :]))


def test_every_page_is_built_and_in_the_menu(site):
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in [path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "index"] + ["commands", "reference"]:
        assert (site / page / "index.html").exists() and f'href="{page}/"' in menu, page
    assert not list(site.rglob("*.py"))


def test_the_menu_is_one_row_and_the_home_page_has_a_picture_and_a_result(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    entries = re.findall(r'<li class="nav-item(?: dropdown)?">', page[: page.index('role="main"')])
    assert 4 <= len(entries) <= 10, entries  # of which three are the search, and the pages before and after
    body = page[page.index('role="main"') :]
    assert "images/iteration.png" in body and "faster than with plain MXNet" in body


def test_a_site_lists_the_documentation_of_all_versions_and_leads_to_the_newest(tmp_path):
    for name in ("0.9.0", "0.10.0", "main", "other"):
        (tmp_path / name).mkdir()
        if name != "other":
            (tmp_path / name / "404.html").write_text("")
    runpy.run_path(str(ROOT / "docs" / "hooks" / "versions.py"))["write"](tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="(.+?)/"', page) == ["0.10.0", "0.9.0", "main"] and "url=0.10.0/" in page


def test_a_site_names_its_version(site):
    assert (site / "404.html").exists()  # by which the list of versions knows it
    assert f"prophet_mx {prophet_mx.__version__}</title>" in (site / "limits" / "index.html").read_text(encoding="utf-8")


def rows_of(table):
    """variable -> the other cells of its row."""
    return {
        cells[0].strip("`"): cells[1:]
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        if cells[0].startswith("`PROPHET_")
    }


def test_the_table_of_settings_has_every_field_and_its_default(site):
    rows = rows_of((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"))
    assert set(rows) == {"PROPHET_" + field.name.upper() for field in dataclasses.fields(Config)}
    shown = text_of(site, "settings")
    for field in dataclasses.fields(Config):
        variable = "PROPHET_" + field.name.upper()
        default = rows[variable][0].strip("`")
        assert getattr(Config.from_env({variable: default}), field.name) == field.default, f"{variable}: not {default}"
        assert variable in shown


def test_the_reference_has_the_public_names_and_reads_as_text(site):
    shown = text_of(site, "reference")
    for name in prophet_mx.__all__:
        assert name in shown or name == "__version__"
    for part in (
        "ScheduledKVStore.pushpull",
        "ScheduledKVStore.stats",
        "predicted_seconds(profile: GradientProfile, rate: float",
        "ScalarLogger(kv: ",
        "run_job(command: Sequence[str], workers: int = 2",
        "from_env(environ: ",
        "-> GradientProfile",
        "As mxnet.kvstore.KVStore.init",
        "ScheduledOptimizer(model: nn.Module, optimizer: torch.optim.Optimizer, *, find_unused_parameters",
        "ScheduledOptimizer.no_sync",
        "load_state_dict(state_dict: Dict[str, Any])",
    ):
        assert part in shown, part
    assert "----------" not in shown and ":class:" not in shown and "``" not in shown
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<li><code>window</code>: bytes in flight to a server", page)
    assert re.search(r"<strong>Raises</strong></p>\s*<ul>\s*<li><code>ConfigError</code>", page)


@pytest.mark.parametrize(
    "page, fact",
    [
        ("docs/settings.md", f"4 bytes to {LARGEST_UNIT // 10**6} MB (`256KiB`"),
        ("docs/settings.md", f"at least 1/{1 / UNIT_SHARE:g} of an iteration's bytes"),
        ("docs/settings.md", f"stack traces and exit code {EXIT_STALLED};"),
        ("docs/reliability.md", f"**exit code {EXIT_STALLED}**"),
        ("docs/settings.md", f"arrays with at least this number of elements are split over all servers (default {BIGARRAY_BOUND})"),
        ("docs/timeline.md", f"every {1000 * _core.POLL_TIMES[0]:g} to {1000 * _core.POLL_TIMES[1]:g} ms"),
        ("docs/timeline.md", f"{Config().timeline_limit // 10**6} MB by default"),
        ("prophet_mx/cli/launch.py", f"  {EXIT_STALLED}       a worker got no answer"),
        ("prophet_mx/cli/launch.py", f"  {EXIT_TIMEOUT}      --timeout passed"),
    ],
)
def test_numbers_in_the_documentation_are_those_of_the_code(page, fact):
    assert fact in (ROOT / page).read_text(encoding="utf-8")


def test_the_commands_are_documented(site):
    shown = text_of(site, "commands")
    for name in COMMANDS:
        assert f"usage: prophet-mx {name}" in shown


def test_the_readme_can_be_read_in_a_minute():
    assert len(README.splitlines()) <= 120


def test_the_readme_links_to_pages_that_exist():
    linked = re.findall(r"\]\(((?:docs|benchmarks|examples|prophet_mx)/[^)#]*|\w+)\)", README)
    assert {"docs/getting-started.md", "docs/how-it-works.md", "docs/settings.md", "docs/troubleshooting.md"} <= set(linked)
    assert not [path for path in linked if not (ROOT / path).exists()]


def test_the_typical_changes_have_five_steps_and_name_what_there_is():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page[page.index("## Five typical changes") :].split("\n## ")[0]
    changes = re.split(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE)[1:]
    assert len(changes) == 2 * 5
    for name, steps in zip(changes[::2], changes[1::2]):
        assert re.findall(r"^(\d)\. ", steps, re.MULTILINE) == list("12345"), name
        paths = re.findall(r"`(\w+(?:/\w+)+(?:\.\w+|/))`", steps)
        assert paths and all((ROOT / path).exists() for path in paths), name
        for what, path in re.findall(r"`(\w+)`\s+(?:in|of)\s+`([\w/]+\.py)`", steps):
            assert re.search(rf"^(?:def|class) {what}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), (name, what)


def test_each_row_about_pytorch_names_tests_that_there_are():
    page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    section = page[page.index("## DDP and ScheduledOptimizer") :].split("\n## ")[0]
    assert section.split("\n\n")[1].startswith("Use it if ")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    assert head == ["feature", "DDP", "`ScheduledOptimizer`", "tested how"]
    for feature, _, ours, how in rows:
        tests = re.findall(r"`(test_\w+\.py)`", how)
        assert tests or ours == "no" or how.startswith("measured"), feature
        assert all((ROOT / "tests" / "pytorch" / name).exists() for name in tests), feature


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def test_commands_in_the_documentation_are_commands():
    used = re.findall(r"^ *(?:[A-Z_]+=\S+ )*prophet-mx ([a-z]\w*)(.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)
    assert used
    for name, rest in used:
        assert name in COMMANDS, f"prophet-mx {name}"
        arguments = [word for word in shlex.split(re.split(r" [|>&]", rest)[0], comments=True) if word != "--help"]
        try:
            cli.parser().parse_args([name, *arguments])
        except SystemExit:
            pytest.fail(f"prophet-mx {name}{rest} is not accepted")


def test_options_and_settings_within_sentences_exist():
    known = {name: set(command._option_string_actions) for name, command in COMMAND_PARSERS.items()}
    for name, rest in re.findall(r"`prophet-mx ([a-z]\w*)([^`]*)`", TEXT):
        words = shlex.split(rest.split(" -- ")[0])
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known[name], f"prophet-mx {name}{rest}"
    assert set(re.findall(r"\bPROPHET_[A-Z_]+\b", TEXT)) == {"PROPHET_" + field.name.upper() for field in dataclasses.fields(Config)}


def test_several_workers_on_a_machine_have_a_gpu_each_in_every_example():
    """Without the option all of them would train on the first."""
    helps = "\n".join(command.format_help() for command in COMMAND_PARSERS.values())
    calls = [line for line in (TEXT + helps).splitlines() if re.match(r" *prophet-mx .*-H \S+:\d", line)]
    assert len(calls) >= 5 and not [line for line in calls if "--gpus-per-worker" not in line]


@pytest.mark.parametrize(
    "page, words",
    [
        *((page, "RDMA is not supported") for page in ("README.md", "docs/getting-started.md", "docs/limits.md", "docs/clusters.md")),
        ("docs/troubleshooting.md", "RDMA is not supported"),
        ("docs/compared.md", "InfiniBand or RoCE with RDMA"),
        ("docs/getting-started.md", "`static_alloc=True, static_shape=True`"),
        ("docs/troubleshooting.md", "`static_alloc=True, static_shape=True`"),
        ("docs/troubleshooting.md", "the compiled part of prophet_mx is missing"),
        ("docs/troubleshooting.md", "over ssh `python` is the first one on the hosts' `PATH`"),
        ("docs/getting-started.md", "kvstore=kv"),
    ],
)
def test_an_answer_stands_where_one_looks_for_it(page, words):
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_pages_for_users_name_no_tests():
    for name in (
        "getting-started",
        "settings",
        "clusters",
        "recipes",
        "troubleshooting",
        "reliability",
        "timeline",
        "security",
        "compared",
    ):
        found = re.findall(r"\btest_\w+", (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
        assert not found, f"{name}: {found}"


def test_extras_are_quoted():
    """In zsh, pip install .[cpu] is an error."""
    for path in PAGES:
        found = re.findall(r"pip install [^'\s]*\[\w+", path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_every_entry_of_commands_is_a_command():
    assert len(COMMANDS) == len(cli.COMMANDS)
    assert all(name in cli.parser().format_help() for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_exit_codes(name):
    done = run_cli(name, "--help")
    assert done.returncode == 0 and done.stderr == ""
    example = re.search(r"^example.*:\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
    assert example, f"no example in\n{done.stdout}"
    [first, *_] = [line.strip() for line in example.group(1).replace("\\\n", " ").splitlines()]
    assert first.startswith(f"prophet-mx {name} "), first
    cli.parser().parse_args(shlex.split(first)[1:])  # what is shown is what is accepted
    codes = re.search(r"^exit codes:\n((?:  .*\n?)+)", done.stdout, re.MULTILINE)
    assert codes, f"no exit codes in\n{done.stdout}"
    listed = re.findall(r"^  (\d+|N)\b", codes.group(1), re.MULTILINE)
    assert "0" in listed and "2" in listed


@pytest.mark.parametrize(
    "arguments", ["simulate --bandwidth 1Gbit --policy plain", "predict --bandwidth 1Gbit --policy plain --no-range", "doctor"]
)
def test_a_command_whose_output_nobody_reads_ends_in_silence(arguments):
    profile = [] if arguments == "doctor" else ["--model", "resnet18", "--compute", "300ms"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "prophet_mx", *arguments.split(), *profile],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, **package_env()},
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_in_one_line_what_is_wrong(name):
    done = run_cli(name, "--no-such-option")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(("prophet-mx", f"prophet-mx {name}")), done.stderr
