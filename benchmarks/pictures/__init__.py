"""What ``benchmarks.plots`` draws, and with what: a module per picture, and the numbers, which need no matplotlib."""
