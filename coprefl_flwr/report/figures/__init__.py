"""The figures of a comparison with their captions, by the names of the figures in recipes.

Matplotlib and seaborn are imported when a figure is drawn. No figure belongs to pyplot, so that the
calling program's matplotlib backend, open figures and settings do not change.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.figures import learning, maps, relations
from coprefl_flwr.report.figures.learning import accuracy_figure as accuracy_figure
from coprefl_flwr.report.figures.learning import learning_figure as learning_figure
from coprefl_flwr.report.figures.style import Drawn, content_of
from coprefl_flwr.report.figures.style import save as save


class Picture(NamedTuple):
    """A drawn figure of a comparison, in all its formats."""

    kind: str  # one of `FIGURES`
    files: dict[str, bytes]  # PNG and PDF content, by path relative to the page's folder
    address: str  # the figure as an SVG in a `data:` address, for a page
    caption: str
    alternative: str  # alternative text for readers who cannot see the figure


def draw(comparison: Comparison, kinds: Sequence[str]) -> list[Picture]:
    """Return the figures of the given kinds, which are keys of `FIGURES`.

    A kind is left out if the comparison has no data for this figure.
    """
    pictures = []
    rows = ", ".join(row.name for row in comparison.rows)
    for kind in kinds:
        if not (drawn := FIGURES[kind](comparison)):
            continue
        figure, caption = drawn
        content = {suffix: content_of(figure, suffix) for suffix in ("png", "pdf", "svg")}
        address = f"data:image/svg+xml;base64,{b64encode(content.pop('svg')).decode()}"
        name = f"figures/{comparison.name}-{kind}"
        files = {f"{name}.{suffix}": data for suffix, data in content.items()}
        pictures.append(Picture(kind, files, address, caption, f"{caption} Of {rows}."))
    return pictures


FIGURES: dict[str, Callable[[Comparison], Drawn]] = {
    "accuracies": learning.accuracies,
    "curves": learning.curves,
    "differences": relations.differences,
    "switch": learning.switch,
    "p1-rounds": relations.p1_rounds,
    "landscape": maps.landscape,
    "similarity": maps.similarity,
    "objective": relations.objective,
}
"""The drawing function of each kind of figure, by the name of the kind."""
