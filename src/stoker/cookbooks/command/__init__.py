"""Any program, unchanged: `stoker run lr=1e-2,1e-3 -- python train.py --lr {lr}`."""

from stoker.cookbooks.command.cookbook import COOKBOOK

__all__ = ["COOKBOOK"]
