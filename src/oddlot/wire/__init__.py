"""How tensors travel: codecs that make arrays of bytes, and frames with a checked header around them."""
