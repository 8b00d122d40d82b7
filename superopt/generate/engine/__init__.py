"""The run: workers, journal, rule files."""
