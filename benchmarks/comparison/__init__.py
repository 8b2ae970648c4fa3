"""What a comparison is made of: its cells and methods, its rows, and what other machines stole meanwhile."""
