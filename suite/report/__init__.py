"""Results for people: terminal tables, Markdown files, the HTML page, plots, JUnit files."""
