"""Ask for the parameters instead of taking them from words."""

import stoker_trainer as trainer

params = trainer.params()
model = params["model"]
loss = params["lr"] / (model["width"] * model["depth"]) + 0.001 * params["seed"]
print(f"{params['name']}: loss={loss:.6f}")
trainer.done(loss=loss)
