"""The command line: one module per command, parsed by one grammar, printed by one output."""
