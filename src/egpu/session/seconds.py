"""Times that callers give."""

from __future__ import annotations

from egpu.errors import InputError


def check_seconds(name: str, value: float) -> None:
    """InputError if it is no time to wait, as NaN is, which is neither less than anything nor
    more."""
    if not value >= 0:
        raise InputError(f"{value!r} is no number of seconds", where=name)
