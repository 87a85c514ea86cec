"""The device check of the rules takes one out where twins are made, and nothing else does."""

import sys
from pathlib import Path

from sass_corpus import assemble, cubin, needs_tools
from splice_probes import EVERYTHING, LAYOUT

from egpu.session import splicing
from egpu.splice import splice_sass
from egpu.splice.sass_rules import EVERY_RULE, Rule

sys.path.append(str(Path(__file__).resolve().parents[2] / "gpu"))
import without_rule


@needs_tools
def test_a_rule_is_taken_out_where_twins_are_made(monkeypatch):
    monkeypatch.setattr(splicing, "splice_sass", splice_sass)
    arguments = (cubin("plain", "90"), "early_exits", EVERYTHING, LAYOUT, assemble)
    whole = splicing.splice_sass(*arguments)
    without_rule.take_out(Rule.LATE_READS)
    assert splicing.splice_sass(*arguments).image != whole.image
    expected = splice_sass(*arguments, rules=EVERY_RULE - {Rule.LATE_READS})
    assert splicing.splice_sass(*arguments).image == expected.image
