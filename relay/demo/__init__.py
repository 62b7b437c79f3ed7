"""The demonstration: the whole way of a message in one run, with crashes and kills, and the proof at its end."""
