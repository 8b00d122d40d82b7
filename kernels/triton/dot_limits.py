"""Least extents of the blocks of `tl.dot`."""

MIN_DOT_EXTENT = 16  # rows, columns and terms
MIN_BYTE_DOT_TERMS = 32  # terms of products of 8-bit integers
MIN_DOT_COLUMNS = 8  # of columns, if several products share rows: the least that tensor cores have
