"""One attempt in a process of its own: handed to it by the keeper, told in files, stopped when its lease is over."""
