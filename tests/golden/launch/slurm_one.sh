#!/bin/bash
#SBATCH --job-name=stoker-a100-7f3a2c --comment=stoker:4c1d:7f3a2c --no-requeue
#SBATCH --output=/shared/lab7/stoker/4c1d/%j.log
#SBATCH --time=240 --ntasks=1 --cpus-per-task=8 --mem=65536M --gres=gpu:a100:2
#SBATCH --partition=gpu --account=lab7 --exclusive
module load python/3.11
export X='a "b" $c'
exec srun --ntasks=1 --cpus-per-task=8 /shared/lab7/venv/bin/python -m stoker work --ticket /shared/lab7/stoker/4c1d/7f3a2c.ticket --idle 300s --for $((14400-SECONDS))s --drain 120s --declare cores=8,ram=65536MiB,gpus=2
