"""Runs the notebooks of examples/notebooks and writes what they show into docs/notebooks.

`make notebooks`. A notebook is a script with cells, which jupytext reads and nbclient runs in a
kernel of its own; its page is Markdown with the cells, what they print and their pictures. Pages
and pictures are committed, so that the site is built without running anything.
"""

import re
import resource
import shutil
import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode

ROOT = Path(__file__).parent.parent
SCRIPTS, PAGES = ROOT / "examples" / "notebooks", ROOT / "docs" / "notebooks"
LONGEST = 300
"""Seconds after which a cell is taken to hang."""


def main(names: list[str]) -> None:
    """Run the notebooks with these names, or all; stops at the first cell that fails."""
    for script in sorted(SCRIPTS.glob("*.py")):
        if not names or script.stem in names:
            before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            write(script.stem, *page(script))
            took = time.monotonic() - before[0]
            on_core = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before[1]
            print(f"{script.stem}: {took:.0f} s, {on_core:.0f} s of one core", flush=True)


def page(script: Path) -> tuple[str, dict[str, bytes]]:
    """Run a script; return its page and its pictures, by the path that the page names."""
    notebook = jupytext.read(script)
    folder = {"metadata": {"path": str(script.parent)}}
    NotebookClient(
        notebook, timeout=LONGEST, kernel_name="python3", resources=folder, coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        cell.outputs = [_shown(one) for one in cell.get("outputs", []) if _is_shown(one)]
    named = {"output_files_dir": script.stem, "unique_key": "picture"}
    text, made = MarkdownExporter().from_notebook_node(notebook, resources=named)
    return _with_source(text, script), made["outputs"]


def write(name: str, text: str, pictures: dict[str, bytes]) -> None:
    """Write a page and its pictures in the place of what was there."""
    shutil.rmtree(PAGES / name, ignore_errors=True)
    (PAGES / name).mkdir(parents=True)
    (PAGES / f"{name}.md").write_text(text)
    for path, content in pictures.items():
        (PAGES / path).write_bytes(content)


def _is_shown(output: NotebookNode) -> bool:
    """Leave out logs, in which there are times."""
    return output.get("name") != "stderr"


def _shown(output: NotebookNode) -> NotebookNode:
    """Leave out the text that stands for a picture."""
    if "image/png" in output.get("data", {}):
        output.data = {"image/png": output.data["image/png"]}
    return output


def _with_source(text: str, script: Path) -> str:
    """Return a page with its script linked below the title, and with nothing that shows nothing."""
    link = f"[{script.name}](../../{script.relative_to(ROOT)})"
    title, _, rest = text.lstrip().partition("\n")
    told = f"{title}\n\nThis page is {link}, as `make notebooks` ran it.\n{rest}"
    told = re.sub(r"<style scoped>.*?</style>\n", "", told, flags=re.S)
    told = told.replace("![png]", "![What the cell above draws]")
    # The theme dresses tables that have no class.
    told = told.replace('<table border="1" class="dataframe">', "<table>")
    told = re.sub(r"[ \t]+$", "", told, flags=re.M)
    return re.sub(r"\n{4,}", "\n\n", told).rstrip() + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
