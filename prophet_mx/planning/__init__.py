"""What is decided: the units, their orders, the lower bound. Pure: numbers in, values out."""
