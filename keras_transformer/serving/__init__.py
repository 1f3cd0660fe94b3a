"""Exports for a model server: SavedModels with their checks, warm-up and settings."""

from keras_transformer.serving.export import export, load_exported

__all__ = ["export", "load_exported"]
