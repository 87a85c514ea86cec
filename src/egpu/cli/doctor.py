"""``egpu doctor``."""

from __future__ import annotations

import click

from egpu.cli.output import destination, json_option, write_report
from egpu.report import Align, Column, Paragraph, Report, Table


@click.command("doctor")
@json_option
def command(*, as_json: bool) -> int:
    """Say what works on this machine and what to install.

    The exit code is 0 if a workload can be probed here, on a GPU or on the simulated device.
    """
    from egpu.cli.machine import State, findings  # noqa: PLC0415

    found = list(findings())
    working = {finding.name for finding in found if finding.state is State.OK}
    ready = "agent" in working and bool(working & {"GPU", "simulated driver"})
    columns = (
        Column("WHAT", Align.LEFT),
        Column("STATE", Align.LEFT),
        Column("DETAIL", Align.LEFT, may_shorten=True),
    )
    rows = tuple((each.name, each.state.value, each.detail) for each in found)
    advice = tuple(
        Paragraph(f"{each.name}: {each.detail}; {each.advice}")
        for each in found
        if each.advice and each.state is not State.OK
    )
    header = next(each for each in found if each.name == "egpu.bpf.h")
    folder = (Paragraph(f"egpu.bpf.h: {header.detail}"),) if header.state is State.OK else ()
    verdict = "Workloads can be probed here." if ready else "No workload can be probed here."
    data = {
        "ready": ready,
        "findings": [
            {
                "name": each.name,
                "state": each.state.value,
                "detail": each.detail,
                "advice": each.advice if each.state is not State.OK else "",
            }
            for each in found
        ],
    }
    parts = (Table("", columns, rows), *folder, *advice, Paragraph(verdict))
    with destination(None) as stream:
        write_report(Report("doctor/1", parts, data), stream, as_json=as_json)
    return 0 if ready else 1
