"""Commands about machines: what they have, who holds their memory, where jobs would go."""
