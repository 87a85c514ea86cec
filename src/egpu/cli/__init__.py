"""The command line: ``egpu`` and ``python -m egpu``.

One file a command, imported when it is used, so that ``egpu --help`` is quick.
"""

from egpu.cli.app import main

__all__ = ["main"]
