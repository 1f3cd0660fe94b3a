"""Exports for a model server: SavedModels with their checks, warm-up and settings."""

from keras_transformer.serving.export_saved_model import export
from keras_transformer.serving.load_saved_model import load_exported

__all__ = ["export", "load_exported"]
