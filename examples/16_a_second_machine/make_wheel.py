"""Write a package of one module as a wheel, by hand: this example asks no index for anything."""

import zipfile
from pathlib import Path

INFO = "shades-1.0.dist-info"
FILES = {
    "shades.py": 'def name(value):\n    return "dark" if value > 2 else "light"\n',
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: shades\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}

Path("wheels").mkdir()
with zipfile.ZipFile("wheels/shades-1.0-py3-none-any.whl", "w") as wheel:
    for path, text in FILES.items():
        wheel.writestr(path, text)
    wheel.writestr(f"{INFO}/RECORD", "".join(f"{path},,\n" for path in [*FILES, f"{INFO}/RECORD"]))
