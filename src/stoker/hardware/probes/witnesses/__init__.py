"""Those who are asked what a machine has, one module each: a question, and a pure reader of the answer."""
