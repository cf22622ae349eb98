"""A run as it goes, in a terminal: its record followed, its curves drawn with letters."""
