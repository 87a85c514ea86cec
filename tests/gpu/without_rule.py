"""egpu with one rule of machine code taken out: python without_rule.py RULE ARGUMENT...

For the check that must see the damage.  It replaces a function in this process, so that nothing in
the package, its options or the environment can take a rule out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial

from egpu.cli import main
from egpu.session import splicing
from egpu.splice.sass_rules import EVERY_RULE, Rule


def take_out(rule: Rule) -> None:
    splicing.splice_sass = partial(splicing.splice_sass, rules=EVERY_RULE - {rule})


if __name__ == "__main__":
    take_out(Rule[sys.argv[1]])
    with tempfile.TemporaryDirectory() as folder:  # such twins are for nobody else
        os.environ["EGPU_CACHE_DIR"] = folder
        sys.exit(main(sys.argv[2:]))
