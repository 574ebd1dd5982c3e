"""From a user's text to rows of tokens: reading, chat templates, masks, packing, and a cursor for each member."""
