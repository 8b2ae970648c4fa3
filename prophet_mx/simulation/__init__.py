"""What would be: a modelled cluster around the shipping scheduler, and predictions from it."""
