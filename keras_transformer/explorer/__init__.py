"""The attention explorer: what the heads of a model look at, as a page.

views.py translates a sentence, and keeps its attention and search; page.py with assets/ shows them.
"""
