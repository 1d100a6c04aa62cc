"""Qt draws into memory here; the tests on a real desktop are in ``tests/desktop``."""

from __future__ import annotations

import os

os.environ["QT_QPA_PLATFORM"] = "offscreen"
