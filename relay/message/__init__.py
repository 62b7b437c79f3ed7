"""Values that a message is made of: identity, envelope, errors. Imports nothing else of the relay."""
