"""Benchmarks: programs that print ratios of things which ran in the same run. No timed tests."""
