"""The tools that come with egpu: a folder each with C source, object file and report."""
