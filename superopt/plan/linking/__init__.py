"""Programs that contain loops: their bodies, buffers and calls."""
