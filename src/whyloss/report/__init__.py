"""Renders a Report. Decides nothing."""

from whyloss.report.json import read_json, write_json
from whyloss.report.text import clean, render_for, render_text, short_path

__all__ = ["clean", "read_json", "render_for", "render_text", "short_path", "write_json"]
