"""The documentation shows the table of policies, and the example of a row in CONTRIBUTING works."""

import re

from prophet_mx.policies import settings, table
from support.commands import python
from support.paths import ROOT


def test_the_documentation_shows_the_table():
    assert table() in (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8"), f"docs/how-it-works.md needs:\n{table()}"
    row = re.search(r"^\| `PROPHET_POLICY` .*$", (ROOT / "docs" / "settings.md").read_text(encoding="utf-8"), re.MULTILINE).group(0)
    assert set(re.findall(r"`([^`]+)`", row.split("|")[3])) == set(settings())


def test_the_example_of_a_row(tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code, printed = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL).group(1) for kind in ("python", "text"))
    assert len([line for line in code.splitlines() if line.strip()]) < 20
    (tmp_path / "example.py").write_text(code)
    assert python(tmp_path / "example.py", cwd=ROOT, merged=True).stdout == printed
