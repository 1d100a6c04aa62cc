"""``python -m app``. Imports nothing heavy at module level: a spawned child imports this module again."""

from __future__ import annotations

import multiprocessing
import sys

if __name__ == "__main__":
    multiprocessing.freeze_support()
    from app.cli import main

    sys.exit(main())
