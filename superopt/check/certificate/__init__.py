"""The replay of certificates, which shares no code with the matcher and the search."""
