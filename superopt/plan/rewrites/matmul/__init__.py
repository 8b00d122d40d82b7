"""Matrix products: batching, gates, recurrent cells, attention, operand layouts."""
