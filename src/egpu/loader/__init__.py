"""Programs that use libbpf, unchanged: their bpf(2) calls go to a session (docs/bpftime.md)."""

from egpu.loader.running import Loader, loader_library, run_attached, run_directly, start_loader

__all__ = ["Loader", "loader_library", "run_attached", "run_directly", "start_loader"]
