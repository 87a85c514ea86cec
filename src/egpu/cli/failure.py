"""How a failure is told: one line on standard error, with the traceback if ``EGPU_DEBUG=1``."""

from __future__ import annotations

import os
from typing import IO, Any

import click

from egpu.errors import EgpuError


def message(error: Exception) -> str:
    """What went wrong, in words for the user."""
    if isinstance(error, EgpuError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else f"input or output: {reason}"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; smaller maps need less"
    # a bug of ours: say so in a line, keep the traceback for EGPU_DEBUG
    return f"internal error: {type(error).__name__}: {error}; EGPU_DEBUG=1 shows where"


def say(error: Exception, consequence: str = "") -> None:
    """Tell of ``error`` and, behind a semicolon, its ``consequence``.

    That the reader of our output went away is told to nobody.
    """
    if isinstance(error, BrokenPipeError):
        return
    if os.environ.get("EGPU_DEBUG") == "1":
        import sys  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        traceback.print_exception(error, file=sys.stderr)
    click.echo(f"egpu: {message(error)}{'; ' if consequence else ''}{consequence}", err=True)


def discard(stream: IO[Any]) -> None:
    """What ``stream`` still holds goes nowhere, so that closing it cannot fail again."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # none, no file behind it, or closed
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
