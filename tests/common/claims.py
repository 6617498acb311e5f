"""The modules of examples/claims, which import each other as those beside a script do."""

import importlib
import sys

from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "claims"
sys.path.append(str(FOLDER))
budgets, page, verdicts = map(importlib.import_module, ("budgets", "page", "verdicts"))
