"""Results as Markdown: TABLES.md and the summaries of one command."""
