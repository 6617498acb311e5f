"""Draw columns of a report's units.csv against another column, or against an option of methods.

python examples/units_figure.py outputs/coprefl-table-2/report gamma accuracy variance
python examples/units_figure.py outputs/recipe/report accuracy barrier probe
"""

import sys
from pathlib import Path

import pandas as pd
import seaborn as sns


def draw(folder: Path, x: str, columns: list[str]) -> Path:
    """Draw a panel per column and comparison into `folder`, and return the file's path."""
    units = pd.read_csv(folder / "units.csv")
    look = {"kind": "scatter"}
    if x not in units:
        # An option that a recipe searches: the row's name ends in "gamma=0.5,learning-rate=0.1".
        units[x] = units["row"].str.extract(rf"[:,]{x}=([^,+]+)", expand=False).astype(float)
        look = {"kind": "line", "marker": "o", "errorbar": "sd", "err_style": "bars"}
    data = units.melt(["comparison", "label", x], columns)
    figure = sns.relplot(
        data, x=x, y="value", hue="label", col="variable", row="comparison", height=3,
        facet_kws={"sharex": False, "sharey": False}, **look,
    ).set_titles("{col_name}, {row_name}")  # fmt: skip
    path = folder / f"{x}.png"
    figure.savefig(path, dpi=200)
    return path


if __name__ == "__main__":
    print(draw(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
