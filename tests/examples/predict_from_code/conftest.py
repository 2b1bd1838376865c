"""The plug-in's folder and that of its measurements are on the path, behind everything else."""

import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[3] / "examples" / "predict_from_code"

for folder in (PLUGIN, PLUGIN / "measure"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
