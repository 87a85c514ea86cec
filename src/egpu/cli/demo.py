"""``egpu demo``."""

from __future__ import annotations

import click

from egpu.cli.output import destination, json_option, write_report
from egpu.errors import UnsupportedError

# Launches of each of the five kernels, and elements; the simulated device is exact, not fast.
_SIMULATED = ("3", "4096")
_REAL = ("100", "1048576")
_SHOWN = ("kernelcount", "kernellat")


@click.command("demo")
@json_option
@click.option("--sim", is_flag=True, help="Use the simulated device, even if there is a GPU.")
def command(*, as_json: bool, sim: bool) -> int:
    """Run the demo workload under kernelcount and kernellat.

    The workload is an ordinary program of the CUDA driver API with five kernels.  It runs on the
    GPU if there is one, else on the simulated device.
    """
    from egpu import session  # noqa: PLC0415
    from egpu.cli.live import follow  # noqa: PLC0415
    from egpu.cli.machine import demo_folder, gpus  # noqa: PLC0415
    from egpu.tools.registry import TOOLS, load_object, new_tool  # noqa: PLC0415

    shown = [entry for entry in TOOLS if entry.name in _SHOWN]

    folder = demo_folder()
    if folder is None:
        raise UnsupportedError(
            "the demo (its workload is not built)", needs="make native, or EGPU_DEMO_DIR"
        )
    simulated = sim or not gpus()
    launches, size = _SIMULATED if simulated else _REAL
    argv = [str(folder / "demo"), "--launches", launches, "--size", size]
    place = "the simulated device" if simulated else "the GPU"
    click.echo(f"egpu: running {' '.join(argv)} on {place}", err=True)
    tools = [new_tool(entry) for entry in shown]
    options = session.Options(simulated=simulated)
    with session.run(
        argv, programs=[load_object(entry) for entry in shown], options=options
    ) as running:

        def collect() -> None:
            for tool in tools:
                tool.collect(running)

        status = follow(running, collect, interval_s=0.02)
        reports = [tool.report(running) for tool in tools]
    for report in reports:
        if not as_json:
            click.echo(f"\n== {report.schema.partition('/')[0]} ==\n")
        with destination(None) as stream:
            write_report(report, stream, as_json=as_json)
    return status
