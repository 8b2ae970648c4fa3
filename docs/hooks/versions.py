"""The first page of a site that has the documentation of several versions.

    python docs/hooks/versions.py FOLDER

Each folder in FOLDER that mkdocs has built is the documentation of a version. FOLDER/index.html leads on to the newest version, and lists
all of them.
"""

import html
import re
import sys
from pathlib import Path
from typing import List, Tuple

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="3; url={newest}/">
<title>prophet_mx</title>
<p>You are taken to the documentation of prophet_mx {newest}. All versions:</p>
<ul>
{entries}
</ul>
</html>
"""


def versions(folder: Path) -> List[str]:
    """The versions in the folder, newest first; then what is not the number of a version, such as a branch."""

    def place(name: str) -> Tuple[bool, List[int], str]:
        return bool(re.fullmatch(r"\d+(\.\d+)*", name)), [int(part) for part in re.findall(r"\d+", name)], name

    return sorted((path.parent.name for path in folder.glob("*/404.html")), key=place, reverse=True)


def write(folder: Path) -> Path:
    """Write the page, and return its path."""
    names = [html.escape(name) for name in versions(folder)]
    page = folder / "index.html"
    page.write_text(PAGE.format(newest=names[0], entries="\n".join(f'<li><a href="{name}/">{name}</a></li>' for name in names)))
    return page


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
