"""The attention explorer: what the heads of a model look at, as a page, a figure and JSON.

`views.py` translates a sentence and keeps all attention and the search, `search_tree.py` what the
search considered, `head_statistics.py` says what heads do; `page.py` with `assets/`, `figure.py`
and `bertviz.py` show it, and `server.py` does so for sentences that are typed.
"""
