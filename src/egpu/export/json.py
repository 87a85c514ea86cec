"""Reports and answers of commands as JSON for programs.

Every document is one object that begins with ``schema`` ("egpu.<name>/<number>") and ``egpu`` (the
version that wrote it).  A schema's number rises when a key goes or changes its meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TextIO

from egpu.report import Report
from egpu.version import VERSION

# A list of numbers, which stands on one line; no string holds a raw newline.
_NUMBERS = re.compile(r"\[\n\s+([-+.,eE\d\s]+?)\s*\]")


def render_json(schema: str, data: Mapping[str, object]) -> str:
    """``data`` as an indented JSON document of ``schema``, with a newline at its end."""
    document = {"schema": f"egpu.{schema}", "egpu": VERSION, **data}
    text = json.dumps(document, indent=2, allow_nan=False)
    return _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"


def render_line(schema: str, data: Mapping[str, object]) -> str:
    """A document on one line, for streams of many; only the last one needs to name the version."""
    document = {"schema": f"egpu.{schema}", **data}
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def write_json(report: Report, stream: TextIO) -> None:
    """Write ``report``'s data to ``stream``."""
    stream.write(render_json(report.schema, report.data))


def write_line(report: Report, stream: TextIO) -> None:
    """Write ``report``'s data on one line: the last of a stream of documents."""
    stream.write(render_line(report.schema, {"egpu": VERSION, **report.data}))
