"""HTTP from this computer: one seam, one client behind it. The only room that knows urllib3."""
