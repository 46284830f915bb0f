"""Renders a Report. Decides nothing."""

from whyloss.report.json import read_json, write_json
from whyloss.report.text import render_text

__all__ = ["read_json", "render_text", "write_json"]
