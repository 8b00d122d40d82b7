"""`optimize`: search, race, check and certificate."""
