"""What probes/leaving.bpf.c must count in a workload that says what it launched."""

from __future__ import annotations

import json
from collections.abc import Mapping

from egpu.bpf.demangle import demangle

LEFT, _TURNS, CAME, SENT = range(4)


def documents(output: str) -> tuple[list[dict], dict, dict, list[str]]:
    """The records, egpu's report and the workload's totals in the output of a run, and the lines
    that the workload wrote."""
    records, lines = [], []
    for line in output.strip().splitlines():
        found = json.loads(line) if line.startswith("{") else {}
        if found.get("schema") == "egpu.record/1":
            records.append(found["value"])
        else:
            lines.append(line)
    report = json.loads(lines.pop())
    return records, report, json.loads(lines[-1])["kernels"], lines


def wrong_leavings(
    kernels: Mapping[str, Mapping], report: Mapping, records: list[dict]
) -> tuple[list[str], int]:
    """(what is not as it must be, threads of the kernels that had the probes)."""
    rows = {row["name"]: row for row in report["kernels"]}
    probed = [name for name in kernels if not rows[demangle(name)]["not_probed"]]
    threads = sum(kernels[name]["threads"] for name in probed)
    totals: dict[int, int] = {}
    for row in report["maps"]["totals"]:  # one for each context that has something
        totals[row["key"]] = totals.get(row["key"], 0) + row["value"]
    counted = sum(row["value"] for row in report["maps"]["threads"])
    wrong = [
        f"{name}: {found:,}, expected {threads:,}"
        for name, found in (
            ("came", totals.get(CAME, 0)),
            ("left", totals.get(LEFT, 0)),
            ("in the hash map", counted),
        )
        if found != threads
    ]
    notes = report["maps"]["notes"]
    sent = totals.get(SENT, 0)
    if notes["received"] + notes["dropped"] != sent or notes["missing"]:
        wrong.append(f"records: {notes} of {sent:,}")
    if notes["received"] != len(records):
        wrong.append(f"{len(records):,} records, {notes['received']:,} received")
    torn = [
        each
        for each in records
        if each["sum"] != each["leaves"] + each["block"] + each["thread"] or each["thread"] % 61
    ]
    wrong += [f"torn: {each}" for each in torn[:3]]
    return wrong, threads
