"""Train 100 steps with a checkpoint every 20; the first time, die at step 50 as a power cut would have it."""

import json
import os
import signal

import stoker_trainer as trainer

state = {"step": 0, "w": 5.0}
checkpoint = trainer.resume()
if checkpoint:
    with open(checkpoint, encoding="utf-8") as file:
        state = json.load(file)
    print(f"going on from step {state['step']}")
for step in range(state["step"] + 1, 101):
    state = {"step": step, "w": state["w"] * 0.95}
    trainer.step(step, of=100, loss=state["w"] ** 2)
    if step % 20 == 0:
        with open("checkpoint.json", "w", encoding="utf-8") as file:
            json.dump(state, file)
        trainer.saved("checkpoint.json", step=step)
    if step == 50 and not checkpoint:
        os.kill(os.getpid(), signal.SIGKILL)
with open(os.path.join(trainer.out(), "model.json"), "w", encoding="utf-8") as file:
    json.dump(state, file)
trainer.done(loss=state["w"] ** 2)
