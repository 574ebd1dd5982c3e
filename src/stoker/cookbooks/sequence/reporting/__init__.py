"""What a person reads of a training: tables, plots, a card. Made from the score book alone."""
