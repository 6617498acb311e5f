"""Draws the badges of the README: the versions of Python and Flower, and the licence.

python docs/badges.py writes docs/pictures/badges.svg from pyproject.toml and CITATION.cff.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "badges.svg"
HEIGHT, PADDING, GAP = 20, 7, 6  # pixels
CHARACTER = 6.6  # pixels, about the width of a character of 11 pixels
DARK, BLUE = "#3d444d", "#0065a3"


def badges() -> dict[str, str]:
    """Return {name of a badge: its text}."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (flwr,) = (line for line in project["dependencies"] if line.startswith("flwr["))
    lowest = {"Python": project["requires-python"], "flwr": flwr}
    versions = {name: text.partition(">=")[2].split(",")[0] for name, text in lowest.items()}
    newer = {name: f"{version} or newer" for name, version in versions.items()}
    cited = re.search(r"^license: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    return newer | {"licence": cited[1] if cited else ""}


def picture() -> str:
    """Return the badges as an SVG image."""
    parts, left = [], 0.0
    for name, text in badges().items():
        for words, colour in ((name, DARK), (text, BLUE)):
            width = 2 * PADDING + CHARACTER * len(words)
            parts.append(
                f'<rect x="{left:g}" width="{width:g}" height="{HEIGHT}" fill="{colour}"/>'
                f'<text x="{left + width / 2:g}" y="14">{words}</text>'
            )
            left += width
        left += GAP
    words = ", ".join(f"{name} {text}" for name, text in badges().items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - GAP:g}" height="{HEIGHT}" '
        f'role="img" aria-label="{words}">\n'
        '<g fill="#ffffff" text-anchor="middle" '
        'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">\n'
        + "\n".join(parts)
        + "\n</g>\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
