"""Our programs started somewhere, and kept going: as services of this machine."""
