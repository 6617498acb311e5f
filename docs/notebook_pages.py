"""Runs the notebooks of examples/notebooks and writes their pages into docs/notebooks.

`make notebooks`. A notebook is a script with cells, which jupytext reads and nbclient runs in a
separate kernel. Its page is Markdown with the cells, their output and their pictures. Of a cell
with the tag `finding`, the page has only the pictures, and below them the printed text as prose.
Pages and pictures are committed, so that the build of the site runs no notebook.
"""

import math
import re
import resource
import shutil
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_output

ROOT = Path(__file__).parent.parent
SCRIPTS, PAGES = ROOT / "examples" / "notebooks", ROOT / "docs" / "notebooks"
LONGEST = 300
"""Time limit of a cell, in seconds."""
_TEXT = "text/markdown"


def main(names: list[str]) -> None:
    """Run the named notebooks, or all notebooks; stop at the first cell that fails."""
    for script in sorted(SCRIPTS.glob("*.py")):
        if not names or script.stem in names:
            before = _seconds_on_a_core()
            text, pictures = page(script)
            seconds = _seconds_on_a_core() - before
            write(script.stem, headed(text, script, seconds), pictures)
            print(f"{script.stem}: {seconds:.0f} s of one core", flush=True)


def page(script: Path) -> tuple[str, dict[str, bytes]]:
    """Run a script; return its page without the line below the title, and its pictures by path."""
    notebook = jupytext.read(script)
    folder = {"metadata": {"path": str(script.parent)}}
    NotebookClient(
        notebook, timeout=LONGEST, kernel_name="python3", resources=folder, coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        cell.outputs = [_shown(output) for output in cell.get("outputs", []) if _is_shown(output)]
        if "finding" in cell.metadata.get("tags", []):
            cell.metadata["transient"] = {"remove_source": True}
            cell.outputs = sorted(map(_prose, cell.outputs), key=lambda one: _TEXT in one.data)
    named = {"output_files_dir": script.stem, "unique_key": "picture"}
    text, resources = MarkdownExporter().from_notebook_node(notebook, resources=named)
    return _tidied(text), resources["outputs"]


def headed(text: str, script: Path, seconds: float) -> str:
    """Return a page with a line below its title: its script and its run time."""
    link = f"[{script.name}](../../{script.relative_to(ROOT)})"
    minutes = math.ceil(seconds / 60)
    time = "less than a minute" if minutes == 1 else f"less than {minutes} minutes"
    line = f"This page is {link}, as `make notebooks` ran it, in {time} of one processor core."
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{line}\n{rest}"


def write(name: str, text: str, pictures: dict[str, bytes]) -> None:
    """Write a page and its pictures; replace older ones."""
    shutil.rmtree(PAGES / name, ignore_errors=True)
    (PAGES / name).mkdir(parents=True)
    (PAGES / f"{name}.md").write_text(text)
    for path, content in pictures.items():
        (PAGES / path).write_bytes(content)


def _is_shown(output: NotebookNode) -> bool:
    """Return False for a log, which contains times."""
    return output.get("name") != "stderr"


def _shown(output: NotebookNode) -> NotebookNode:
    """Return an output; without its text if it has a picture."""
    if "image/png" in output.get("data", {}):
        output.data = {"image/png": output.data["image/png"]}
    return output


def _prose(output: NotebookNode) -> NotebookNode:
    """Return printed text as a paragraph of the page; another output unchanged."""
    if output.output_type != "stream":
        return output
    return new_output("display_data", {_TEXT: output.text})


def _tidied(text: str) -> str:
    """Return a page without style sheets and empty lines, its pictures with a description."""
    text = re.sub(r"<style scoped>.*?</style>\n", "", text.lstrip(), flags=re.S)
    text = text.replace("![png]", "![What the cell above draws]")
    # The theme formats only tables without a class.
    text = text.replace('<table border="1" class="dataframe">', "<table>")
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{4,}", "\n\n", text).rstrip() + "\n"


def _seconds_on_a_core() -> float:
    """Return the CPU seconds of the kernels that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


if __name__ == "__main__":
    main(sys.argv[1:])
