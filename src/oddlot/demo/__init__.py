"""`oddlot demo digits`: a page to draw digits on, which a network recognizes, encodes and decodes."""
