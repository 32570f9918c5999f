"""The data of row 57: images of digits that scikit-learn brings along, and names that Babel brings along.

A sample is its class in one byte, then its contents: 64 pixels, or a name in UTF-8. The images lie in a shard
for each class, as in ImageNet's folders, so that the dataset is in the order of the classes. The names are in
the order of their lengths, as in LibriSpeech. Both are the worst orders for chunks that are not striped.
"""

import gzip
import importlib
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .mounts import run

PACKAGES = ["scikit-learn", "babel"]
LANGUAGES = "cs de es fi fr hu it nl pl pt sv tr".split()
CLASSES = {"digits": 10, "names": len(LANGUAGES)}
TEST_SHARE = {"digits": 0.25, "names": 0.15}


def packages(directory):
    """Installs the packages, without those that they need, into a directory; only their data is read."""
    if not directory.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory]
        subprocess.run([*command, *PACKAGES], check=True)
    return directory


def digits(directory):
    """Class and contents of each image: 8 × 8 pixels of 17 shades."""
    with gzip.open(directory / "sklearn" / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        for line in file:
            *pixels, label = (round(float(value)) for value in line.split(","))
            yield label, bytes(pixels)


def names(directory):
    """Class and contents of each name of a country, a language, a currency, a script or a variant: the class
    is the language in which the name is given. Names that two of the languages share have no class."""
    sys.path.insert(0, str(directory))
    try:
        locale = importlib.import_module("babel").Locale
    finally:
        sys.path.remove(str(directory))
    found = {}
    for language in LANGUAGES:
        of = locale.parse(language)
        kinds = (of.territories, of.languages, of.currencies, of.scripts, of.variants)
        found[language] = {str(name) for kind in kinds for name in kind.values()}
    languages = Counter(name for own in found.values() for name in own)
    for label, language in enumerate(LANGUAGES):
        for name in sorted(found[language]):
            if languages[name] == 1 and len(name) >= 3:
                yield label, name.encode()


def make_dataset(copperfs, origin, kind):
    """Writes the samples to train on as a dataset with its manifest, and those to test with beside it. The
    name of the dataset, and the file to test with; made once."""
    name = f"accuracy-{kind}"
    mark, test = origin / f"{name}.manifest", origin / f"{name}.test"
    if mark.exists():
        return name, test
    samples = sorted({"digits": digits, "names": names}[kind](packages(origin.parent / "accuracy-packages")))
    random.Random(7).shuffle(samples)
    held_out = round(len(samples) * TEST_SHARE[kind])
    test.write_text("".join(f"{sample_of(one).hex()}\n" for one in samples[:held_out]))
    write_shards(origin / name, samples[held_out:], kind)
    listed = origin / f"{name}.entries"
    time.sleep(2.1)  # until their times tell one version from the next
    run([copperfs, "dataset", "manifest", origin / name, "-o", mark, "--entries", listed])
    listed.unlink()
    time.sleep(2.1)
    return name, test


def write_shards(directory, samples, kind):
    """Writes samples into shards, and the list of entries beside the directory."""
    by_class = kind == "digits"
    ordered = sorted(samples, key=lambda one: one[0] if by_class else len(one[1]))
    directory.mkdir(parents=True, exist_ok=True)
    shards, lines = {}, []
    for one in ordered:
        shard = f"class{one[0]}" if by_class else "names"
        written = shards.setdefault(shard, bytearray())
        lines.append(f"{shard}\t{len(written)}\t{len(sample_of(one))}\n")
        written += sample_of(one)
    for shard, written in shards.items():
        (directory / shard).write_bytes(written)
    Path(f"{directory}.entries").write_text("".join(lines))


def sample_of(labelled):
    """The bytes of a sample."""
    label, contents = labelled
    return bytes([label]) + contents
