"""Count the letters of a file: a cookbook in a package of its own, as a user would write and install one."""

from letters.recipes import COOKBOOK as COOKBOOK
