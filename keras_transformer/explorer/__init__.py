"""The attention explorer: what the heads of a model look at, as a page, a figure and JSON.

views.py translates a sentence and keeps its attention and search; page.py with assets/ and
figure.py show them, and server.py does so for sentences that a user types.
"""
