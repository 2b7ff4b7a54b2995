"""What both ends of a link speak: bytes in, values out; no I/O. The launcher may import it."""
