"""Commands, one file per noun."""
