"""What the lines of probes/prints.bpf.c must be: each follows from the place it came from."""

from __future__ import annotations

import json

NAMES = ("zero", "one", "two", "three")
MASK = (1 << 64) - 1


def documents(output: str) -> tuple[list[dict], dict, dict]:
    """The printed lines, egpu's report and the workload's totals in the output of a run."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    lines = [each for each in found if each.get("schema") == "egpu.print/1"]
    (totals,) = [each for each in found if "kernels" in each and "maps" not in each]
    return lines, found[-1], totals["kernels"]


def expected(line: dict) -> str:
    """The text that the place of ``line`` asks for."""
    if line["text"].startswith("block"):
        return f"block {line['block'][0]} begins -1"
    thread, number = line["thread"][0], int(line["text"].split()[2])
    name = NAMES[thread & 3]
    return f"some {thread} {number} deadbeef stack {name} {-number}"


def wrong_lines(lines: list[dict], report: dict, kernels: dict) -> list[str]:
    """Everything that is not as it must be; ``kernels`` are the workload's own totals."""
    wrong = [
        f"{line['kernel']} {line['block']} {line['thread']}: {line['text']!r}"
        for line in lines
        if line["text"] != expected(line)
    ]
    of = {kind: sum(line["text"].startswith(kind) for line in lines) for kind in ("block", "some")}
    tried = {row["key"]: row["value"] for row in report["maps"]["tried"]}
    blocks = sum(row["blocks"] for row in kernels.values())
    printed = report["printed"]
    if tried.get(0) != blocks:
        wrong.append(f"{tried.get(0)} blocks printed, {blocks} ran")
    if printed["shown"] != len(lines):
        wrong.append(f"{len(lines)} lines, the report says {printed['shown']}")
    sent = len(lines) + printed["dropped"] + printed["suppressed"] + printed["missing"]
    if sent != tried[0] + tried[1]:
        wrong.append(f"{sent} lines accounted for, {tried[0] + tried[1]} printed")
    if not printed["dropped"] and of != {"block": tried[0], "some": tried[1]}:
        wrong.append(f"lines by program: {of}, printed {tried}")
    places = {(line["launch"], *line["block"], *line["thread"], line["text"]) for line in lines}
    if len(places) != len(lines):
        wrong.append(f"{len(lines) - len(places)} lines came twice")
    return wrong
