"""Encoding of tensors: codecs, packets, and frames with a checksum."""
