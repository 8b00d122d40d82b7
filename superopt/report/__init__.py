"""Reports as plain data, text, SVG and HTML."""
