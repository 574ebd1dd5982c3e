"""The web pages: their files, how they are served, and `stoker ui`, which serves them on loopback."""
