"""How jobs start and end, on this machine and over ssh. Imports the modules at the top alone."""
