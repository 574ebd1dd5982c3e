"""The only messages that our programs share, and the client that speaks them."""
