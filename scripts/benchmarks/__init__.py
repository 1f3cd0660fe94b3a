"""The engines and measurements of `scripts/benchmark.py`."""
