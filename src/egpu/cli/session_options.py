"""Options of the commands that attach programs: ``run`` and ``attach``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from egpu.cli.counts import Count
from egpu.cli.seconds import Seconds

if TYPE_CHECKING:
    from egpu.session import Options

kernels_option = click.option(
    "--kernels", metavar="GLOB", default="", help="Probe only kernels whose name matches."
)
twin_wait_option = click.option(
    "--twin-wait",
    "twin_wait_s",
    metavar="S",
    type=Seconds(0),
    default=10.0,
    show_default=True,
    help="How long the first launch of a kernel waits for its instrumented twin.",
)
occupancy_option = click.option(
    "--allow-occupancy-loss",
    is_flag=True,
    help="Use twins of which fewer blocks fit on an SM (persistent kernels may hang).",
)
machine_code_option = click.option(
    "--machine-code/--no-machine-code",
    default=None,
    help="Probe machine code where there is some, and PTX elsewhere; on unless switched off.",
)
pin_option = click.option(
    "--pin",
    "pins",
    metavar="MAP[=NAME]",
    multiple=True,
    help="Pin a map: `egpu map` reads it by that name, also after the end.",
)
map_deletions_option = click.option(
    "--map-deletions",
    is_flag=True,
    help="Let `egpu map delete` delete from hash maps although no program does.",
)
rings_option = click.option(
    "--rings",
    type=click.Choice(["host", "device"]),
    default="host",
    show_default=True,
    help="Memory that programs write the records of rings to.",
)
print_limit_option = click.option(
    "--print-limit",
    metavar="N",
    type=Count(0),
    default=10_000,
    show_default=True,
    help="Lines of bpf_printk shown in a second, 0 for all; the others are counted.",
)
interval_option = click.option(
    "--interval",
    metavar="S",
    type=Seconds(0.001),
    default=0.02,
    show_default=True,
    help="How often records are collected.",
)


def chosen_options(chosen: Mapping[str, Any]) -> Options:
    """The options of a session from what a command line chose, by their names in ``Options``; what
    it leaves open (None) is as by default.  A usage error for what is no pin."""
    from egpu.session import Options, RingMemory  # noqa: PLC0415

    given = {name: value for name, value in chosen.items() if value is not None}
    made = {"pins": pins_of(given["pins"]), "rings": RingMemory(given["rings"])}
    return Options(**given | made)


def _pin(text: str) -> tuple[str, str]:
    """Map and name of the pin."""
    map_name, equals, name = text.partition("=")
    if not map_name or (equals and not name):
        raise click.UsageError(f"--pin {text!r} is not MAP or MAP=NAME")
    return map_name, name or map_name


def pins_of(texts: Sequence[str]) -> dict[str, str]:
    """Pins by map; a usage error for what is none."""
    found: dict[str, str] = {}
    for map_name, name in map(_pin, texts):
        if map_name in found:
            raise click.UsageError(f"--pin names the map {map_name!r} twice")
        found[map_name] = name
    return found
