"""From what a person wrote to jobs that can be submitted: checked, default-filled, under stable ids."""
