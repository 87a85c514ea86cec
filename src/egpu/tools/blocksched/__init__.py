"""blocksched: which block ran on which SM, and when."""
