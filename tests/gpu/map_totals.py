"""What probes/hashes.bpf.c and probes/per_thread.bpf.c must leave behind, whatever the order their
threads came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

KEYS, FEW, ROOM, RECENT = 1000, 200, 100, 200
RESULTS = (
    "threads", "won", "lost", "inserted", "present", "deleted", "absent", "filled", "refused",
    "kept", "busy", "other",
)  # fmt: skip


def results_of(maps: Mapping[str, Sequence[Mapping]]) -> dict[str, int]:
    """The program's own counts by name."""
    found = {RESULTS[row["key"]]: row["value"] for row in maps["results"]}
    return {name: found.get(name, 0) for name in RESULTS}


def wrong_totals(maps: Mapping[str, Sequence[Mapping]], threads: int) -> list[str]:
    """What differs from what ``threads`` threads must have done; ``maps`` as in the report."""
    results = results_of(maps)
    rows, churn, small = maps["counts"], maps["churn"], maps["small"]
    facts = {
        "threads": (results["threads"], threads),
        "answers that no map gives": (results["other"], 0),
        "keys counted": (len(rows), min(KEYS, len({row["key"]["number"] for row in rows}))),
        "insertions that won": (results["won"], len(rows)),
        "insertions that won or lost": (results["won"] + results["lost"], threads),
        "sum of the counts": (sum(row["value"] for row in rows), threads),
        "insertions into churn": (results["inserted"] + results["present"], threads),
        "left in churn": (len(churn), results["inserted"] - results["deleted"]),
        "sum of the counts per SM": (sum(row["value"] for row in maps["per_sm"]), threads),
        "entries of small": (len(small), ROOM),
        "entries of recent": (len(maps["recent"]), RECENT),
        "updates of small": (results["filled"] + results["refused"], threads),
    }
    wrong = [f"{name}: {found}, expected {want}" for name, (found, want) in facts.items()]
    wrong = [
        line for line, (found, want) in zip(wrong, facts.values(), strict=True) if found != want
    ]
    for row in rows:
        number = row["key"]["number"]
        if row["key"] != {"number": number, "twice": 2 * number, "square": number * number}:
            wrong.append(f"torn key {row['key']}")
    wrong += [f"torn key {row['key']} in churn" for row in churn if row["key"] >= FEW]
    wrong += [f"value {row} in churn" for row in churn if row["value"] != 1]
    wrong += [f"torn value {row} in small" for row in small if row["value"] != [3 * row["key"]] * 2]
    wrong += [
        f"torn value {row} in recent"
        for row in maps["recent"]
        if row["value"] != [3 * row["key"]] * 2
    ]
    return wrong


def wrong_per_thread(
    maps: Mapping[str, Sequence[Mapping]], kernels: Mapping[str, Mapping], slots: int
) -> list[str]:
    """What differs in the values of each thread; ``kernels`` are the workload's own totals."""
    launches = [(row["threads"] // row["launches"], row["launches"]) for row in kernels.values()]
    expected = {
        thread: sum(count for threads, count in launches if threads > thread)
        for thread in range(min(slots, max(threads for threads, _ in launches)))
    }
    past = sum(max(0, threads - slots) * count for threads, count in launches)
    wrong = []
    for name, key in (("idiom", 1), ("update", 0)):
        found = {row["thread"]: row["value"] for row in maps[name] if row["key"] == key}
        if found != expected or len(found) != len(maps[name]):
            different = [t for t in expected if found.get(t) != expected[t]]
            wrong.append(f"{name}: {len(different)} threads differ, first {different[:3]}")
    counted = sum(row["value"] for row in maps["beyond"])
    if counted != past:
        wrong.append(f"threads beyond the slots: {counted}, expected {past}")
    return wrong
