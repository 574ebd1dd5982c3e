"""What workers send to be kept: attempts' files as they grow, bundles, checkpoints; and how long they are kept."""
