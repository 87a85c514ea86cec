"""What the records of probes/identity.bpf.c must hold."""

from __future__ import annotations

import json


def documents(output: str) -> tuple[list[dict], dict, dict]:
    """The records, egpu's report and the workload's totals in the output of a run."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    records = [each["value"] for each in found if each.get("schema") == "egpu.record/1"]
    (totals,) = [each for each in found if "kernels" in each and "maps" not in each]
    return records, found[-1], totals["kernels"]


def wrong_records(records: list[dict], kernels: dict, span: tuple[int, int], uid_gid: int) -> list:
    """Everything that is not as it must be; ``span`` is CLOCK_MONOTONIC before and after the run,
    in ns."""
    wrong = []
    blocks = sum(row["blocks"] for row in kernels.values())
    if len(records) != blocks:
        wrong.append(f"{len(records)} records, {blocks} blocks")
    pids = {record["pid_tgid"] for record in records}
    if len(pids) != 1 or any(pid >> 32 != pid & 0xFFFFFFFF for pid in pids):
        wrong.append(f"pid_tgid: {pids}")
    for record in records:
        times = record["ktime"], record["boot"], record["coarse"]
        expected = {"comm": "64656d6f" + 24 * "0", "uid_gid": uid_gid, "same": 1}
        bad = {name: record[name] for name, value in expected.items() if record[name] != value}
        if record["kernel"] != record["kernel_id"]:
            bad["kernel"] = record["kernel"]
        if list(times) != sorted(times):
            bad["times"] = times
        if not span[0] <= record["ktime"] <= span[1]:
            bad["ktime"] = f"{record['ktime']} outside {span}"
        if bad:
            wrong.append(bad)
    return wrong
