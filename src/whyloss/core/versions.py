"""Which torch whyloss works with."""

OLDEST_TORCH = (2, 6)


def version_of(text: str) -> tuple[int, int]:
    """(2, 13) for '2.13.0+cpu'; (0, 0) for what is no version."""
    parts = text.split("+")[0].split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else (0, 0)
