"""Turn an .npz pack of pictures into the folders that `mixwise train` reads.

    python benchmarks/unpack.py orl_faces.npz faces             faces/{train,val}/<person>/<shot>.png
    python benchmarks/unpack.py fashion_mnist_12k.npz fashion   fashion/{train,val}/<class>/<index>.png

ORL faces are split by image within each person: shots 1–7 train, 8–10 val. Fashion-MNIST: its test part becomes val.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image


def write(folder: Path, split: str, label: str, name: str, pixels: np.ndarray) -> None:
    """Write one picture."""
    target = folder / split / label.replace("/", "-")
    target.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(target / f"{name}.png")


def main() -> None:
    """Read the pack, write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    pack, folder = np.load(arguments.pack, allow_pickle=False), arguments.folder
    if "subject" in pack:
        for pixels, subject, shot in zip(pack["image"], pack["subject"], pack["shot"], strict=True):
            write(folder, "train" if shot <= 7 else "val", f"person{subject:02d}", f"{shot:02d}", pixels)
        return
    for source, split in (("train", "train"), ("test", "val")):
        for index, (pixels, label) in enumerate(zip(pack[f"{source}_image"], pack[f"{source}_label"], strict=True)):
            write(folder, split, str(pack["classes"][label]), f"{index:05d}", pixels)


if __name__ == "__main__":
    main()
