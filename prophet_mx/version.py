"""The version of prophet_mx. A module of its own: every package may import it, and builds read it without importing anything."""

__version__ = "0.1.0"
