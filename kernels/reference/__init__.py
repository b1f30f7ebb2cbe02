"""Slow, obvious implementations in plain Python and numpy: what every fast kernel must agree with."""
