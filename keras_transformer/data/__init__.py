"""Sentence pairs from files or TensorFlow Datasets, and batches of their ids."""
