"""``python -m tests.real.quick_brake serve …``: the application, its brake looking every second, not every minute."""

from __future__ import annotations

import asyncio
import sys

from app.cli import parser
from app.commands import serve
from app.host.braking import Periods
from app.survey import Options

QUICK = Periods(idle=1.0, quiet=0.8, before_turn=0.0)

if __name__ == "__main__":
    given = parser().parse_args(sys.argv[1:])
    sys.exit(asyncio.run(serve(Options(given.home, tuple(given.models), periods=QUICK))))
