"""The attention explorer: what the heads of a model look at, as a page, a figure and JSON.

views.py translates a sentence, keeps its attention and search, and draws figures of them; page.py
with assets/ shows them.
"""
