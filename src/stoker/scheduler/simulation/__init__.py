"""The placement rules on a clock of their own."""
