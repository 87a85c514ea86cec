"""Options that are a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 1_000_000  # the wire has milliseconds in 32 bits


class Seconds(click.FloatRange):
    """At least ``least`` seconds, and a number: no range excludes NaN."""

    name = "number of seconds"

    def __init__(self, least: float) -> None:
        super().__init__(least, MOST)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return number
