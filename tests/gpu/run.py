"""Every check that needs a real GPU, in one go.

    python tests/gpu/run.py [--only WORD]... [--repeat N] [--json FILE] [--conformance DIR]
                            [--no-skips]

Builds the native parts and the workloads with cmake, cc and nvcc, runs each check, prints a line
for each and a summary.  ``--only`` takes checks whose name contains the word.  A check that gives
"skipped: ..." found that this machine lacks what it needs.  Exit code 0 if none failed, and with
``--no-skips`` none was skipped.  Python needs what pyproject.toml names and cuda-bindings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from building import ROOT, build  # noqa: E402 - the path above comes first
from observing import CheckError  # noqa: E402

SKIPPED = "skipped: "
_WORDS = {"passed": "ok  ", "skipped": "skip", "failed": "FAIL"}


def conformance_folder() -> Path | None:
    for folder in (ROOT.parent / "shared" / "conformance", ROOT / "shared" / "conformance"):
        if folder.is_dir():
            return folder
    return None


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--no-skips", action="store_true", help="a check that is skipped fails")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="races hide: run N times"
    )
    parser.add_argument("--conformance", type=Path, default=conformance_folder(), metavar="DIR")
    return parser.parse_args(arguments)


def run_check(check, built) -> dict:
    start = time.monotonic()
    row = {"name": check.__name__, "verdict": "failed", "detail": ""}
    try:
        row["detail"] = check(built)
        row["verdict"] = "skipped" if row["detail"].startswith(SKIPPED) else "passed"
    except CheckError as error:
        row["detail"] = str(error)
    except Exception:  # a check that breaks is a failed check; the others still run
        row["detail"] = traceback.format_exc()
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def summary(rows: list[dict], *, no_skips: bool) -> tuple[str, int]:
    """The last line, and the exit code."""
    names = {
        verdict: [row["name"] for row in rows if row["verdict"] == verdict] for verdict in _WORDS
    }
    parts = [
        f"{len(found)} {verdict}" + (f" ({', '.join(found)})" if found else "")
        for verdict, found in names.items()
        if verdict != "passed"
    ]
    bad = bool(names["failed"]) or not rows or (no_skips and bool(names["skipped"]))
    return f"{len(names['passed'])} passed, {', '.join(parts)}", int(bad)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # These import egpu, whose native parts build() makes.
    import checks_attach  # noqa: PLC0415
    import checks_bpftime  # noqa: PLC0415
    import checks_budgets  # noqa: PLC0415
    import checks_callbacks  # noqa: PLC0415
    import checks_counts  # noqa: PLC0415
    import checks_failures  # noqa: PLC0415
    import checks_helpers  # noqa: PLC0415
    import checks_host_maps  # noqa: PLC0415
    import checks_maps  # noqa: PLC0415
    import checks_programs  # noqa: PLC0415
    import checks_rules  # noqa: PLC0415
    import checks_sass  # noqa: PLC0415
    import checks_tools  # noqa: PLC0415
    import checks_uniforms  # noqa: PLC0415

    start = time.monotonic()
    built = build(conformance=options.conformance)
    print(f"built in {time.monotonic() - start:.1f} s", flush=True)
    modules = (
        checks_programs,
        checks_counts,
        checks_sass,
        checks_uniforms,
        checks_rules,
        checks_maps,
        checks_callbacks,
        checks_budgets,
        checks_host_maps,
        checks_attach,
        checks_helpers,
        checks_failures,
        checks_tools,
        checks_bpftime,
    )
    checks = [check for module in modules for check in module.CHECKS]
    if options.only:
        checks = [c for c in checks if any(word in c.__name__ for word in options.only)]
    rows = []
    for check in checks * options.repeat:
        row = run_check(check, built)
        rows.append(row)
        verdict = _WORDS[row["verdict"]]
        print(f"{verdict} {row['name']:<20} {row['seconds']:6.1f} s  {row['detail']}", flush=True)
    line, code = summary(rows, no_skips=options.no_skips)
    print(line)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
