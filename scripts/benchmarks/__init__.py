"""What `scripts/benchmark.py` measures, one process for each engine, and how it reports it."""
