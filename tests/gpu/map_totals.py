"""What probes/hashes.bpf.c and probes/per_thread.bpf.c must leave behind, whatever the order their
threads came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

KEYS, FEW, ROOM, LATEST = 1000, 200, 100, 200
RESULTS = (
    "threads", "won", "lost", "inserted", "present", "deleted", "absent", "filled", "refused",
    "kept", "busy", "other", "fitted", "again",
)  # fmt: skip


def results_of(maps: Mapping[str, Sequence[Mapping]]) -> dict[str, int]:
    """The program's own counts by name."""
    found = {RESULTS[row["key"]]: row["value"] for row in maps["results"]}
    return {name: found.get(name, 0) for name in RESULTS}


def wrong_totals(report: Mapping, threads: int) -> list[str]:
    """What differs from what ``threads`` threads must have done; ``report`` as egpu wrote it.

    Maps that the probe does not have are left out.
    """
    maps, evicted = report["maps"], {n: c["evicted"] for n, c in report["counters"].items()}
    results = results_of(maps)
    facts = {
        "threads": (results["threads"], threads),
        "answers that no map gives": (results["other"], 0),
    }
    wrong = []
    if "recent" in maps:
        # Some of the answers were of keys that were there: no more can have been evicted.
        most = results["kept"] - len(maps["recent"])
        facts["evictions from recent are right"] = (0 < evicted["recent"] <= most, True)
    if "roomy" in maps:
        facts["evictions from roomy"] = (evicted["roomy"], 0)
    for name, (numbers, torn) in _PARTS.items():
        if name in maps:
            facts |= numbers(maps[name], results, threads)
            wrong += torn(maps[name])
    return [
        *(f"{name}: {found}, expected {want}" for name, (found, want) in facts.items()
          if found != want),
        *wrong[:20],
    ]  # fmt: skip


def _counts(rows: Sequence[Mapping], results: Mapping[str, int], threads: int) -> dict:
    return {
        "keys counted": (len(rows), min(KEYS, len({row["key"]["number"] for row in rows}))),
        "insertions that won": (results["won"], len(rows)),
        "insertions that won or lost": (results["won"] + results["lost"], threads),
        "sum of the counts": (sum(row["value"] for row in rows), threads),
    }


def _torn_counts(rows: Sequence[Mapping]) -> list[str]:
    wrong = []
    for row in rows:
        number = row["key"]["number"]
        if row["key"] != {"number": number, "twice": 2 * number, "square": number * number}:
            wrong.append(f"torn key {row['key']}")
    return wrong


def _churn(rows: Sequence[Mapping], results: Mapping[str, int], threads: int) -> dict:
    return {
        "insertions into churn": (results["inserted"] + results["present"], threads),
        "left in churn": (len(rows), results["inserted"] - results["deleted"]),
    }


def _torn_churn(rows: Sequence[Mapping]) -> list[str]:
    return [f"{row} in churn" for row in rows if row["key"] >= FEW or row["value"] != 1]


def _small(rows: Sequence[Mapping], results: Mapping[str, int], threads: int) -> dict:
    return {
        "entries of small": (len(rows), ROOM),
        "updates of small": (results["filled"] + results["refused"], threads),
    }


def _torn_pairs(rows: Sequence[Mapping]) -> list[str]:
    return [f"torn value {row}" for row in rows if row["value"] != [3 * row["key"]] * 2]


def _recent(rows: Sequence[Mapping], results: Mapping[str, int], _threads: int) -> dict:
    return {"entries of recent": (len(rows), LATEST), "given up": (results["busy"], 0)}


def _roomy(rows: Sequence[Mapping], results: Mapping[str, int], threads: int) -> dict:
    """A key that was evicted would be inserted again, and its count begin anew."""
    return {
        "entries of roomy": (len(rows), min(KEYS, threads)),
        "insertions into roomy": (results["fitted"], len(rows)),
        "updates of roomy": (results["fitted"] + results["again"], threads),
        "sum of the counts of roomy": (sum(row["value"] for row in rows), threads),
        "given up": (results["busy"], 0),
    }


def _per_sm(rows: Sequence[Mapping], _results: Mapping[str, int], threads: int) -> dict:
    return {"sum of the counts per SM": (sum(row["value"] for row in rows), threads)}


_PARTS = {
    "counts": (_counts, _torn_counts),
    "churn": (_churn, _torn_churn),
    "small": (_small, _torn_pairs),
    "recent": (_recent, _torn_pairs),
    "per_sm": (_per_sm, lambda _: []),
    "roomy": (_roomy, lambda _: []),
}


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


def _values(rows: Sequence[Mapping], count: int) -> list[int]:
    """The values of an array by key."""
    found = {row["key"]: row["value"] for row in rows}
    return [found.get(key, 0) for key in range(count)]


def wrong_callbacks(maps: Mapping[str, Sequence[Mapping]], threads: int) -> list[str]:
    """What differs in the maps of probes/callbacks.bpf.c."""
    facts = {
        "threads, turns, keys, wrong results": (
            _values(maps["results"], 4),
            [threads, 36 * threads, 20 * threads, 0],
        ),
        "values per SM": (_values(maps["per_sm"], 5), [threads * (key + 1) for key in range(5)]),
    }
    return [f"{n}: {found}, expected {want}" for n, (found, want) in facts.items() if found != want]


def wrong_budgets(
    maps: Mapping[str, Sequence[Mapping]], threads: int, turns: Mapping[str, int], short: int
) -> list[str]:
    """What differs in the maps of probes/budgets.bpf.c, whose programs have so many ``turns``;
    ``short`` runs are said to have been cut short."""
    row = _values(maps["results"], 14)
    facts = {
        "runs": ((row[0], row[5], row[9]), (threads,) * 3),
        "turns of runs with may_goto": ((row[2], row[3]), (row[1] * turns["pays"], row[4])),
        "turns of loops that ended": (row[7], row[8]),
        "calls of bpf_loop": ((row[11], row[12]), (row[10] * turns["calls"], row[13])),
        "runs cut short": (short, row[1] + (row[5] - row[6]) + row[10]),
        "runs of each kind": (min(row[1], row[5] - row[6], row[6], row[10], 1), 1),
    }
    return [f"{n}: {found}, expected {want}" for n, (found, want) in facts.items() if found != want]


def wrong_walks(maps: Mapping[str, Sequence[Mapping]], blocks: int) -> list[str]:
    """What differs in the maps of probes/callbacks_hash.bpf.c."""
    found, want = _values(maps["results"], 4), [blocks, blocks, 0, 0]
    wrong = [] if found == want else [f"walks, whole, torn, too long: {found}, expected {want}"]
    for row in maps["table"]:
        if row["value"] != {"first": 3 * row["key"], "second": 3 * row["key"]}:
            wrong.append(f"entry {row}")
    return wrong


PUSHED = (
    "threads", "pushed", "refused", "popped", "empty", "torn", "found", "lost", "other", "kept",
    "taken", "none",
)  # fmt: skip


def wrong_pushed(maps: Mapping[str, Sequence[Mapping]], threads: int) -> list[str]:
    """What differs in what probes/pushed.bpf.c left behind."""
    counted = {PUSHED[row["key"]]: row["value"] for row in maps["results"]}
    results = {name: counted.get(name, 0) for name in PUSHED}
    queue, stack = maps["waiting"], maps["latest"]
    facts = {
        "threads": (results["threads"], threads),
        "answers that no map gives": (results["other"], 0),
        "torn values": (results["torn"], 0),
        "found in the filter": (results["found"], threads),
        "pushes to the queue": (results["pushed"] + results["refused"], threads),
        "left in the queue": (len(queue), results["pushed"] - results["popped"]),
        "pushes to the stack": (results["kept"], threads),
        "pops from both": (
            results["popped"] + results["empty"],
            results["taken"] + results["none"],
        ),
        "room of the stack": (len(stack) <= 300, True),
    }
    wrong = [
        f"{name}: {found}, expected {want}"
        for name, (found, want) in facts.items()
        if found != want
    ]
    for row in (*queue, *stack):
        if row["value"]["thrice"] != 3 * row["value"]["number"]:
            wrong.append(f"torn value {row}")
    return wrong


INNER = {  # map of probes/inner.bpf.c: which threads count in it
    "array_a": (5, (0,)), "array_b": (5, (1,)), "array_c": (5, (3,)), "per_sm_a": (2, (0,)),
    "per_sm_b": (2, (1,)), "table_a": (4, (0,)), "table_b": (4, (1,)),
}  # fmt: skip


def wrong_inner(maps: Mapping[str, Sequence[Mapping]], kernels: Mapping[str, Mapping]) -> list[str]:
    """What differs in what probes/inner.bpf.c counted; ``kernels`` are the workload's totals."""
    expected = {name: dict.fromkeys(range(7), 0) for name in INNER}
    for row in kernels.values():
        threads = row["threads"] // row["launches"]
        for name, (modulus, chosen) in INNER.items():
            for key in range(7):
                count = sum(
                    len(range(first, threads, 7 * modulus))
                    for first in range(7 * modulus)
                    if first % modulus in chosen and first % 7 == key
                )
                expected[name][key] += count * row["launches"]
    wrong = []
    for name, wanted in expected.items():
        found = {row["key"]: row["value"] for row in maps[name]}
        if found != {key: count for key, count in wanted.items() if count}:
            wrong.append(f"{name}: {found}, expected {wanted}")
    return wrong
