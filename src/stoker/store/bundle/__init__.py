"""Trees as one file to send: deterministic archives, and archives of strangers unpacked without harm."""
