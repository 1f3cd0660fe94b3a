"""The symbols that every vocabulary reserves."""

PAD_ID = 0
UNKNOWN_ID = 1
START_ID = 2
END_ID = 3
