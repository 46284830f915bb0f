"""The data that flows through whyloss, and pure arithmetic on it. NumPy only: nothing here imports torch."""
