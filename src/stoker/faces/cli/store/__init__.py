"""`stoker store …`: what is kept, and keeping it in order."""
