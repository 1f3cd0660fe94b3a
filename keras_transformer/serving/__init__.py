"""Exports for a model server.

`export` writes and loads SavedModels, `checks` tests them, and `model_folder` finds versions, reads
their model cards without TensorFlow, and writes the server's settings.
"""
