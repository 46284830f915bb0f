"""Rules on the data: what goes wrong before the first call."""
