"""`verify` and `derive`: whether two models compute the same."""
