"""What a person reads of a training: tables, plots, a card."""
