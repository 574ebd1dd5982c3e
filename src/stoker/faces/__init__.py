"""What people touch: commands first; the screens come later and draw the same views."""
