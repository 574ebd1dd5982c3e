"""The recipes that ship with Stoker, one package per cookbook; nothing is imported from here."""
