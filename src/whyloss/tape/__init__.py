"""One training step as a tape: recorded, replayed bit for bit, edited, trained on, located in, kept on disk."""
