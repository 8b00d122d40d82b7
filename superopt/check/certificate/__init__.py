"""The replay of certificates, which imports neither search nor matcher."""
