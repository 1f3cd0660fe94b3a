"""Models of other toolkits, one file a format."""
