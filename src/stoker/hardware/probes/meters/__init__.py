"""Those who measure devices' memory now."""
