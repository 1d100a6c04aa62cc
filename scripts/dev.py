"""The one command of a checkout: ``python3 scripts/dev.py run|test|lint|setup|bench|clients``.

This file stays readable for old Pythons (3.6), so that a too old one gets a sentence instead of a syntax error;
the commands themselves are in ``dev_commands.py``.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    found = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"dev.py needs Python 3.11 or newer; {sys.executable} is {found}. Try: python3.11 scripts/dev.py")

from dev_commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
