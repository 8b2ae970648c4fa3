"""How jobs start and end, on this machine and over ssh."""
