"""The page: everything that is recorded in one file of HTML that needs no network."""
