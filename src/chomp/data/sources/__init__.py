"""Where documents come from, one kind of source a file, and what their records mean."""
