"""Maps that the host changes while kernels use them."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

from building import Built
from host_maps import PROGRAM, REFUSED, Amount, Expected, Stepper, alternate, together
from host_pushes import POPPED, PUSHED, REFUSED_PUSHES, TORN, exchange
from observing import egpu, plain, require

import egpu as api

AMOUNT = Amount(grid=100_000, block=96, times=300)


def dumped(reference: str) -> tuple[dict, dict]:
    """What ``egpu map dump`` says in another process, and the entries of the only context."""
    run = plain(egpu("map", "dump", reference, "--json"))
    require(run.code == 0, f"egpu map dump {reference}: {run.errors}")
    document = json.loads(run.output)
    (rows,) = document["contexts"]
    return document, {row["key"]: row["value"] for row in rows}


def read_meanwhile(stop: threading.Event, seen: list) -> None:
    """Another process reads a counter while kernels run: it only grows, up to what it must be."""
    while not stop.is_set():
        document, totals = dumped("check_totals")
        seen.append((document["complete"], totals[0] + totals[1]))


def host_maps(built: Built) -> str:
    """Updates before, between and during launches of two kernels on the same maps; another process
    reads them meanwhile and after the session; totals exact."""
    del built
    settings = api.Options(
        map_deletions=True,
        pins={"totals": "check_totals", "blocks": "check_blocks"},
    )
    with tempfile.TemporaryDirectory(prefix="egpu-check-") as folder:
        os.environ["EGPU_RUNTIME_DIR"] = f"{folder}/runtime"
        obj, stepper, expected = api.Object(PROGRAM), Stepper(Path(folder)), Expected()
        obj.maps["totals"][REFUSED] = 77
        with api.run(stepper.argv, programs=obj, options=settings) as session:
            alternate(obj.maps, stepper, expected, AMOUNT)
            stop, seen = threading.Event(), []
            reader = threading.Thread(target=read_meanwhile, args=(stop, seen))
            reader.start()
            ours, changes, median = together(obj.maps, stepper, expected, AMOUNT)
            stop.set()
            reader.join()
            obj.detach()
            stepper.do("first 1000 32")
            obj.attach()
            stepper.do("second 1000 32")
            expected.launched(1, 1000, 32, factor=7, step=3)
            stepper.end(session)
            wrong = expected.wrong(obj.maps, ours)
            require(not wrong, "; ".join(wrong))
            require(obj.maps["totals"][REFUSED] == 77, "what was set before the start is lost")
            require(changes > 0, "no change was made while kernels ran")
        threads = expected.totals[0] + expected.totals[1]
        document, totals = dumped("check_totals")
        require(document["complete"], "what was saved is not complete")
        require(totals[0] + totals[1] == threads, f"saved: {totals}, not {threads} threads")
        require(dumped("check_blocks")[1] == expected.blocks | ours, "saved blocks are wrong")
        counts = [count for _, count in seen]
        require(counts == sorted(counts) and counts[-1] <= threads, f"read meanwhile: {counts}")
    return (
        f"{threads:,} threads, {changes:,} changes and {len(seen)} reads by another process "
        f"meanwhile, {median * 1e3:.2f} ms each change: exact"
    )


def host_pushes(built: Built) -> str:
    """The host and kernels push to and pop from one queue: nothing is lost, doubled or torn."""
    del built
    pushed, popped, left, counts = exchange(api.Options(), grid=20, block=33, times=5, rounds=200)
    require(counts[REFUSED_PUSHES] == 0, f"{counts[REFUSED_PUSHES]} pushes were refused")
    threads = 20 * 33 * 5
    taken_there = counts[POPPED]
    require(counts[PUSHED] == threads, f"{counts[PUSHED]} pushed, {threads} threads")
    rest = pushed + threads - taken_there - len(popped)
    require(len(left) == rest, f"{len(left)} left, {rest} expected")
    both = popped + left
    require(all(third == 3 * number for number, third in both), "a value is torn")
    require(counts[TORN] == 0, "a value is torn on the device")
    return f"{threads} pushes by threads, {pushed} by the host, {len(left)} left: exact"


CHECKS = (host_maps, host_pushes)
