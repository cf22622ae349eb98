#!/usr/bin/env python3
"""The same program as `scripts/grug_dir_diff.py`, under the path that recipes know it by."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().parent.parent / "grug_dir_diff.py"
    runpy.run_path(str(program), run_name="__main__")
