"""Protos to the graph IR: types, constants, subgraphs, older opsets."""
