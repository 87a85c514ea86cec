"""The command line: ``egpu`` and ``python -m egpu``.

One file a command, imported when it is used, so that ``egpu --help`` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code; see ``egpu.cli.app.main``."""
    try:
        from egpu.cli import app  # noqa: PLC0415
    except KeyboardInterrupt:  # while it is read
        print("egpu: interrupted", file=sys.stderr)
        return 130  # EXIT_INTERRUPTED
    return app.main(arguments)
