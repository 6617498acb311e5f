"""The picture of the first page shows the numbers of a stored table."""

import re

from docs import overview


def test_stored_picture_is_up_to_date():
    assert overview.PICTURE.read_text(encoding="utf-8") == overview.overview()
    assert overview.NARROW.read_text(encoding="utf-8") == overview.narrow()


def test_picture_shows_the_difference_of_the_page_of_claims():
    shown = re.search(
        r"CoPreFL minus FedAvg: (\S+) points, .* interval (\S+) to (\S+),", overview.overview()
    )
    claimed = rf"{shown[1]} \[{shown[2]}, {shown[3]}\] points"
    page = (overview.DOCS / "claims.md").read_text(encoding="utf-8")
    assert claimed in page.replace("\u00a0", " ")
