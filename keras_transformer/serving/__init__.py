"""Exports for a model server.

`export` writes and loads SavedModels, `checks` and `warm_up` test them, `versions` finds them and
reads their model cards without TensorFlow, and `server_files` writes the server's settings.
"""
