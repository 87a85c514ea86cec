"""Options and arguments that are a whole number."""

from __future__ import annotations

import click


class Count(click.IntRange):
    """A whole number; a message that it is none says so."""

    name = "whole number"
