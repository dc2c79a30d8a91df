"""Pictures as files: PNG and SVG."""
