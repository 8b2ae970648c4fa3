"""What a comparison is made of: its cells, methods and rows."""
