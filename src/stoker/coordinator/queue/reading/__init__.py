"""What people and programs ask of the queue: pages, stories, events, counts. Never in the writer's way."""
