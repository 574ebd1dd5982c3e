"""Write scikit-learn's wine data as a CSV file, with the class in the column `cultivar`."""

import sys

from sklearn.datasets import load_wine

data = load_wine(as_frame=True)
table = data.frame.rename(columns={"target": "cultivar"})
table["cultivar"] = table["cultivar"].map(dict(enumerate(["barolo", "grignolino", "barbera"])))
table.to_csv(sys.argv[1] if len(sys.argv) > 1 else "wine.csv", index=False)
