"""Example 14, made for late attach: programs that are attached to a workload which runs already."""

from host_side import LAUNCHES, late


def test_example_14_is_attached_late(built, tmp_path, monkeypatch):
    """Every thread of every launch from then on, and none of those before."""
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path))
    probed, launches = late(built, "--sim")
    assert LAUNCHES <= probed < launches
