"""The configuration: its sections, how they are read, and every rule between them."""
