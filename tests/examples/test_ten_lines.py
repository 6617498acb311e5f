"""The example script of the Python interface, with fewer rounds."""

import runpy

from tests.common.simulation import ROOT


def test_ten_lines_script_compares_two_starts():
    main = runpy.run_path(str(ROOT / "examples" / "ten_lines.py"))["main"]
    found = main(rounds=1, number=1, task_rounds=1).summary()
    assert list(found.index) == ["random", "coprefl"]
    assert found["tasks"].tolist() == [1, 1]
