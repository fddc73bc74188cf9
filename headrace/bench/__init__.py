"""Benchmarks: stock and patched, measured in one run."""
