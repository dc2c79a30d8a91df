"""The page: everything that is recorded in one HTML file that needs no network."""
