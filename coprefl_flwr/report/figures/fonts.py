"""Fonts of figures: a name is drawn in any script for which a font is installed.

Only functions that draw import this module, because it imports matplotlib.
"""

import functools
import logging
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font
from matplotlib.text import Text

from coprefl_flwr.report.figures.style import settings

logger = logging.getLogger("flwr.coprefl")


class ReadableFigure(Figure):
    """A figure that looks for a font for each of its characters, however it is saved."""

    def draw(self, renderer: Any) -> None:
        """Set fonts for all texts of the figure, and draw it with the settings of figures."""
        with settings():
            texts: list[Any] = self.findobj(Text)
            others = fonts_for(frozenset("".join(text.get_text() for text in texts)))
            for text, shown in zip(texts, drawn([text.get_text() for text in texts]), strict=True):
                if own := [others[c] for c in text.get_text() if others.get(c)]:
                    text.set_fontfamily(list(dict.fromkeys([*text.get_fontfamily(), *own])))
                    text.set_fontweight("normal")  # Such a font may have no bold letters.
                text.set_text(shown)
            super().draw(renderer)


def drawn(texts: Iterable[str]) -> list[str]:
    """Return the texts as they are drawn: with the codes of characters that no font has."""
    others = fonts_for(frozenset("".join(texts)))
    codes = {ord(c): f"U+{ord(c):04X} " for c, family in others.items() if not family}
    return [text.translate(codes).rstrip() if codes else text for text in texts]


@functools.cache
def fonts_for(characters: frozenset[str]) -> dict[str, str]:
    """Return {character: family of a font that has it} of those that the usual font lacks.

    The family is "" if no installed font has the character; these are logged in one line.
    """
    lacking, families = _lacking(findfont(FontProperties()), characters - {"\n"}), dict[str, str]()
    for path in sorted(findSystemFonts() if lacking else (), key=lambda path: "Sans" not in path):
        with suppress(Exception):  # A file may be damaged, or have bitmaps, which are not drawn.
            left = _lacking(path, lacking)
            if left != lacking and "LastResort" not in path:  # It has boxes for all characters.
                fontManager.addfont(path)  # Matplotlib's list of fonts may be older than the font.
                families |= dict.fromkeys(lacking - left, get_font(path).family_name)
                lacking = left
    if lacking:
        _warn_of("".join(sorted(lacking)))
    return families | dict.fromkeys(lacking, "")


def _lacking(path: str, characters: frozenset[str]) -> frozenset[str]:
    return frozenset(c for c in characters if not get_font(path).get_char_index(ord(c)))


@functools.cache
def _warn_of(characters: str) -> None:
    scripts = {unicodedata.name(c, "symbols").split()[0].lower() for c in characters}
    why = f"no installed font has them: install one for {', '.join(sorted(scripts))}"
    noto = "such as one of https://fonts.google.com/noto"
    logger.warning("figures have the codes of %s, because %s, %s", characters, why, noto)
