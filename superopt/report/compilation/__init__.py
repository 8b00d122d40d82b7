"""Reports of compiled models: profiles, accuracy, C source."""
