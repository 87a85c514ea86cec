"""The version, in one place (pyproject.toml says the same; a test compares them)."""

VERSION = "0.1.0"
