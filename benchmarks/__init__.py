"""Benchmarks of prophet_mx: a testbed on shaped links, the comparison of methods, pictures."""
