"""Rewrites of model protos: repair, submodels, decomposition of contrib operators."""
