"""What is shown, as text and nothing else: pure functions from facts to lines, shared by every face."""
