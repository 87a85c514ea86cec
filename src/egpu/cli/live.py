"""Following a workload to its end, for ``run`` and ``demo``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from egpu.session import Session

SIGNAL_BASE = 128  # a shell's exit code for a process that a signal ended


def follow(session: Session, collect: Callable[[], None], *, interval_s: float) -> int:
    """Call ``collect`` every ``interval_s`` seconds until the workload has ended; its exit code.

    Control-C reaches the workload by itself (it is in the terminal's foreground group); egpu goes
    on until the workload has ended, and gives up at the second one.
    """
    interrupted = False
    while True:
        try:
            while session.running():
                collect()
                time.sleep(interval_s)
            status = session.wait()
            break
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            click.echo("egpu: waiting for the workload to end; once more gives up", err=True)
    collect()
    return status if status >= 0 else SIGNAL_BASE - status
