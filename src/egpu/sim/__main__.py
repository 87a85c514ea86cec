"""``python -m egpu.sim --socket PATH``: the simulated device's server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from egpu.errors import EgpuError, InputError
from egpu.sim.server import SM_COUNT, serve_until_signal


@click.command()
@click.option("--socket", "path", required=True, type=click.Path(path_type=Path))
@click.option("--sms", default=SM_COUNT, show_default=True, type=click.IntRange(1, 1024))
@click.option("--stop-with-parent", is_flag=True, help="Stop when standard input ends.")
def main(path: Path, sms: int, stop_with_parent: bool) -> None:
    """Serve the stand-in CUDA driver of workloads that find PATH in EGPU_SIM_SOCKET."""
    try:
        serve_until_signal(path, sms, stop_with_parent=stop_with_parent)
    except EgpuError as error:
        print(f"egpu-sim: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) and error.usage else 1)


if __name__ == "__main__":
    main()
